"""Configurations that come with the package: listed, printed, and known by name."""

import json
from pathlib import Path

import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.shipped import CONFIGS, shipped_names
from tests.command import invoke


def test_the_list_says_what_each_is_for():
    abouts = json.loads(invoke("configs", "--json").stdout)
    assert list(abouts) == shipped_names(CONFIGS)
    assert abouts["digits-quick"] == "The whole method in six minutes on two shared cores."
    assert abouts["cifar10-found"].startswith("The shape of cifar10-demo, with every choice")
    assert all(len(about.split()) > 4 for about in abouts.values())
    assert abouts["digits"] in invoke("configs").stdout


@pytest.mark.parametrize("name", shipped_names(CONFIGS))
def test_the_first_line_is_a_command_with_this_very_name(name):
    first, second, *_ = (CONFIGS / f"{name}.toml").read_text().splitlines()
    assert first.startswith("# mpcvit ")
    assert first.split()[3] == name
    assert second.startswith("# ")


def test_a_printed_one_is_a_file_to_start_from(tmp_path):
    (tmp_path / "my.toml").write_text(invoke("configs", "digits").stdout)
    assert load_config(tmp_path / "my.toml") == load_config(Path("digits"))


def test_names_and_the_old_path_work_and_an_own_file_goes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = load_config(CONFIGS / "digits.toml")
    for name in ("digits", "digits.toml", "configs/digits.toml"):
        assert load_config(Path(name)) == shipped
    Path("digits.toml").write_text(invoke("configs", "digits-tiny").stdout)
    assert load_config(Path("digits.toml")) == load_config(CONFIGS / "digits-tiny.toml")


def test_an_estimate_knows_names(tmp_path):
    invoke("estimate", "digits", "--out", tmp_path / "latency.json")
    assert (tmp_path / "latency.json").is_file()


def test_a_folder_and_an_unknown_name_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").mkdir()
    assert "mine.toml is a folder" in invoke("train", "mine.toml", code=2).stderr
    assert "did you mean 'digits'?" in invoke("configs", "digit", code=2).stderr
    assert "there is no configuration else/digits.toml" in (
        invoke("train", "else/digits.toml", code=2).stderr
    )

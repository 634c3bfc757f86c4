"""Every command of the documentation exists with every option; quick ones are run."""

import itertools
import json
import re

import pytest
import typer

from mpcvit.cli import app
from tests.command import invoke
from tests.docs.commands import commands, parse
from tests.docs.pages import PAGES, ROOT

TRAINING = ("train", "search", "retrain", "pipeline")
WRITTEN = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)}"[:80])
    for page in PAGES
    for words in commands(page)
]


@pytest.mark.parametrize("words", WRITTEN)
def test_commands_and_options_exist(words):
    if len(words) == 1 or "..." in words:  # a bare name, in a sentence
        parse(words[:1])
        return
    names, _, arguments, command = parse(words)
    for argument in arguments:
        if argument.startswith(("results/", "latency/")):
            assert (ROOT / argument).exists(), f"there is no {argument}"
    if names and not hasattr(command, "commands"):
        most = sum(
            99 if parameter.nargs == -1 else 1
            for parameter in command.params
            if parameter.param_type_name == "argument"
        )
        assert len(arguments) <= most


def test_the_pages_have_commands():
    assert {page.name for page in PAGES if commands(page)} >= {
        *("README.md", "tutorial.md", "search.md", "two_hosts.md", "extending.md", "paper_map.md")
    }


def test_a_page_that_trains_installs_what_training_needs():
    """Also where the digits come from scikit-learn."""
    pages = [page for page in PAGES if "pip install --constraint" in page.read_text("utf-8")]
    trains = [page for page in pages if any(words[0] in TRAINING for words in commands(page))]
    assert {page.name for page in trains} == {"README.md", "tutorial.md"}
    for page in trains:
        install = re.search(r"pip install --constraint .*", page.read_text("utf-8"))
        assert "[train]" in install.group(), page.name


def all_commands(command, names=()):
    if hasattr(command, "commands"):
        for name, own in command.commands.items():
            yield from all_commands(own, (*names, name))
    else:
        yield names


@pytest.mark.parametrize("names", list(all_commands(typer.main.get_command(app))), ids=" ".join)
def test_every_help_is_a_page_with_an_example_that_parses(names):
    command = typer.main.get_command(app)
    for name in names:
        command = command.commands[name]
    about, _, example = command.help.partition("Example: ")
    assert len(about.split()) >= 8
    assert example.startswith(f"mpcvit {' '.join(names)}")
    parse(example.split()[1:])


def test_every_command_is_in_the_documentation():
    written = {tuple(words[:2]) for page in PAGES for words in commands(page)}
    for names in all_commands(typer.main.get_command(app)):
        assert any(own[: len(names)] == names for own in written), f"mpcvit {' '.join(names)}"


def test_commands_that_need_no_training(tmp_path, monkeypatch):
    """Run as they are written, but for where they write."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    wanted = ("estimate", "experiment --list", "certs")
    done = []
    for words in itertools.chain.from_iterable(commands(page) for page in PAGES):
        line = " ".join(words)
        if line.startswith(wanted) and line not in done and words[0] != line:
            is_new = words[0] == "certs" and words[1].startswith("--")
            if "postgresql" not in line:  # where there is no database
                invoke(*words, *(["--fresh"] if is_new else []))
            done.append(line)
    assert len(done) >= 4
    printed = invoke(
        *("report", "results/secure/lowering-dealer.csv", "--figures", "docs/figures", "--json")
    )
    made = {path.rpartition("/")[2] for path in json.loads(printed.stdout)["figures"]}
    assert "lowered-measured-s.png" in made  # as docs/results.md says of its figure

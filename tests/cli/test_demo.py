"""`mpcvit demo` and the script that makes what it shows, on a network of seconds."""

import json
import subprocess
import sys
from functools import partial

import pytest
import typer

from mpcvit.artifacts.record import RunRecord
from mpcvit.codec import load
from mpcvit.demo import show
from mpcvit.demo.showcase import Showcase
from mpcvit.secure.run import run
from tests.command import invoke
from tests.configs import TINY
from tests.tools import load_tool


@pytest.fixture(scope="module")
def showcase(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    smallest = ("train.epochs=1", "model.depth=1", "model.attention=scaling")
    overrides = (word for key in smallest for word in ("--set", key))
    invoke("train", TINY, "--out", folder / "run", *overrides)
    tool = load_tool("make_showcase")
    tool.CALIBRATION_IMAGES = 32
    # without a dealer, which has tests of its own
    tool.main(
        [folder / "run"],
        names="scaling",
        out=folder / "showcase",
        profile="semi2k-wan",
        samples=3,
    )
    return folder / "showcase"


def test_as_many_names_as_networks(showcase):
    with pytest.raises(typer.BadParameter, match="as many different names"):
        load_tool("make_showcase").main([showcase, showcase], names="a,a", out=showcase)


def test_a_showcase_says_where_its_networks_come_from(showcase):
    held = Showcase.load(showcase)
    (network,) = held.networks
    assert (network.name, network.config, network.epochs) == ("scaling", "digits-tiny", 1)
    assert set(network.top1) == {"plain", "lowered"}
    assert len(held.samples) == 3


def cache_by_model(run):
    results = {}

    def cached(model, *arguments, **options):
        if model not in results:
            results[model] = run(model, *arguments, **options)
        return results[model]

    return cached


def test_one_table_who_learnt_what_and_a_report(showcase, tmp_path, monkeypatch):
    # in threads, and each once; processes have tests of their own
    monkeypatch.setattr(show, "run", cache_by_model(partial(run, simulate=True)))
    out = tmp_path / "out"
    told = invoke("demo", "--models", showcase, "--images", 2, "--out", out).stdout
    for column in ("scaling, plain", "scaling, lowered"):
        assert column in told.splitlines()[0]
    for row in ("right", "as in plaintext", "MB sent", "exchanges", "seconds", "speed-up"):
        assert any(line.startswith(row) for line in told.splitlines())
    assert "no weight" in told
    assert "INSECURE" in told
    assert f"report    {out / 'report.html'}" in told
    page = (out / "report.html").read_text()
    for chart in ("lowered-exchanges", "heads", "layer-bytes", "learning"):
        assert f'id="{chart}' in page
    assert "Private predictions beside the truth" in page
    plain, lowered = (
        load(RunRecord, out / "scaling" / f"record-{form}.json") for form in ("plain", "lowered")
    )
    assert (plain.images, len(plain.batches), lowered.form) == (2, 1, "lowered")
    assert lowered.exchanges < plain.exchanges / 2
    again = invoke("demo", "--models", showcase, "--images", 2, "--out", out, "--json").stdout
    document = json.loads(again)
    assert [len(one["predictions"]) for one in document["networks"]] == [2, 2]
    assert document["networks"][0]["speed_up"] == 1.0
    assert document["report"] == str(out / "report.html")


def test_mistakes_are_told_before_anything_runs(showcase, tmp_path):
    out = ("--out", tmp_path / "out")
    refused = invoke("demo", "--models", showcase, "--images", 4, *out, code=2)
    assert "holds 3 sample images, not 4" in refused.stderr
    assert "tools/make_showcase.py" in invoke("demo", "--models", tmp_path, *out, code=2).stderr
    assert not (tmp_path / "out").exists()
    (tmp_path / "taken").write_text("a file")
    refused = invoke(
        "demo", "--models", showcase, "--images", 1, "--out", tmp_path / "taken", code=2
    )
    assert f"cannot write into {tmp_path / 'taken'}" in refused.stderr


@pytest.mark.long
def test_the_shipped_networks_in_processes_and_through_the_wan(tmp_path):
    """What `make demo` types, with one image: client, server and dealer are processes."""
    command = ("demo", "--images", "1", "--out", str(tmp_path / "out"), "--json")
    done = subprocess.run(
        [sys.executable, "-m", "mpcvit", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [one["agree"] for one in document["networks"]] == [1, 1, 1, 1]
    softmax, softmax_lowered, mpcvit, mpcvit_lowered = (
        one["exchanges"] for one in document["networks"]
    )
    assert mpcvit < softmax
    assert max(softmax_lowered, mpcvit_lowered) < mpcvit / 3
    assert (tmp_path / "out" / "report.html").stat().st_size > 0

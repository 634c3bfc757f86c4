"""`mpcvit demo` and the script that makes what it shows, on a network of seconds."""

import json
import re
import subprocess
import sys
import webbrowser
from functools import partial

import pytest
import typer

from mpcvit import storage
from mpcvit.artifacts.record import RunRecord
from mpcvit.codec import load
from mpcvit.demo import show
from mpcvit.demo.showcase import Column, Showcase
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
    tool._BATCH_SIZE = 24  # few images are compiled quickly
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
    assert [(one.title, one.images) for one in held.columns] == [
        ("scaling, plain", 1),
        ("scaling, lowered", None),
    ]


def test_columns_are_data_of_the_showcase():
    tool = load_tool("make_showcase")
    shown = tool.parse_columns("softmax:plain:1, mpcvit:lowered,found:lowered")
    assert shown == tool.default_columns(["softmax", "mpcvit", "found"])
    assert shown[0] == Column(network="softmax", form="plain", images=1)
    for wrong in ("softmax", "softmax:fast", "softmax:plain:0", "softmax:plain:x"):
        with pytest.raises(typer.BadParameter, match="NETWORK:plain"):
            tool.parse_columns(wrong)


def cache_by_images(run):
    results = {}

    def cached(model, pictures, *arguments, **options):
        key = (model, tuple(pictures))
        if key not in results:
            results[key] = run(model, pictures, *arguments, **options)
        return results[key]

    return cached


def test_one_table_who_learnt_what_and_a_report(showcase, tmp_path, monkeypatch):
    # in threads, and each once; processes have tests of their own
    monkeypatch.setattr(show, "run", cache_by_images(partial(run, simulate=True)))
    opened = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    out = tmp_path / "out"
    told = invoke("demo", "--models", showcase, "--images", 2, "--out", out, "--open").stdout
    for column in ("scaling, plain", "scaling, lowered"):
        assert column in told.splitlines()[0]
    assert told.splitlines()[2].split("not run")[1].endswith(" s")  # plain runs one image alone
    for row in ("right", "as in plaintext", "MB sent", "exchanges", "speed-up"):
        assert any(line.startswith(row) for line in told.splitlines())
    for row in (" per image", ", all images", " of set-up", " in all"):
        assert any(line.startswith(f"seconds{row}") for line in told.splitlines())
    assert "no weight" in told
    assert "INSECURE" in told
    assert f"report    {out / 'report.html'}" in told
    assert opened == [(out / "report.html").as_uri()]
    page = (out / "report.html").read_text()
    for chart in ("trade-off", "image-seconds", "heads", "layer-bytes", "learning"):
        assert f'id="{chart}' in page
    plain, lowered = (
        load(RunRecord, out / "scaling" / f"record-{form}.json") for form in ("plain", "lowered")
    )
    assert (plain.images, lowered.images, len(lowered.batches)) == (1, 2, 2)
    assert lowered.exchanges / 2 < plain.exchanges / 2
    for place in (0, 1):  # terminal and page say the same seconds of the same picture
        seconds = f"{lowered.times.images[place][1]:.1f} s"
        assert told.splitlines()[1 + place].endswith(f", {seconds}")
        card = re.findall(r'<li class="card">.*?</li>', page, re.DOTALL)[place]
        assert f"<span>{seconds}</span></dd></dl>" in card
    again = invoke("demo", "--models", showcase, "--images", 2, "--out", out, "--json").stdout
    document = json.loads(again)
    assert [len(one["predictions"]) for one in document["networks"]] == [1, 2]
    assert document["networks"][0]["speed_up"] == 1.0
    assert document["report"] == str(out / "report.html")


def test_mistakes_are_told_before_anything_runs(showcase, tmp_path):
    out = ("--out", tmp_path / "out")
    refused = invoke("demo", "--models", showcase, "--images", 4, *out, code=2)
    assert "holds 3 sample images, not 4" in refused.stderr
    assert (
        "a showcase is a folder with" in invoke("demo", "--models", tmp_path, *out, code=2).stderr
    )
    assert not (tmp_path / "out").exists()
    (tmp_path / "taken").write_text("a file")
    refused = invoke(
        "demo", "--models", showcase, "--images", 1, "--out", tmp_path / "taken", code=2
    )
    assert f"cannot write into {tmp_path / 'taken'}" in refused.stderr


def test_a_disk_without_room_is_told_in_one_line(showcase, tmp_path, monkeypatch):
    out = tmp_path / "out"
    (out / "showcase.json").mkdir(parents=True)  # where a file is to be copied
    refused = invoke("demo", "--models", showcase, "--images", 1, "--out", out, code=2).stderr
    assert f"cannot write {out / 'showcase.json'}: " in refused
    assert refused.count("showcase.json") <= 2
    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: usage)
    refused = invoke("demo", "--models", showcase, "--images", 1, "--out", out, code=2).stderr
    assert f"{out} has 1.0 kB free, but 5." in refused.splitlines()[-1]


@pytest.mark.long
def test_the_shipped_networks_in_processes_and_through_the_wan(tmp_path):
    """What `make demo` types, with one image: client, server and dealer are processes."""
    command = ("demo", "--images", "1", "--out", str(tmp_path / "out"), "--json")
    done = subprocess.run(
        [sys.executable, "-m", "mpcvit", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    plain, *lowered = document["networks"]
    assert all(one["agree"] == 1 for one in document["networks"])
    assert max(one["exchanges"] for one in lowered) < plain["exchanges"] / 3
    fastest = max(one["speed_up"] for one in lowered)
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{fastest:.1f} times faster than the plain network" in page

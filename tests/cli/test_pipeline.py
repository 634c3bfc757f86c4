"""`mpcvit pipeline`: every step once, the same command goes on, and a report at the end."""

import csv
import json
import shutil

import pytest

from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.pipeline.kept import make_once
from tests.cli.test_commands import invoke
from tests.unit.test_config import TINY

SMALLER = ("model.depth=1", "train.epochs=1", "search.epochs=1", "distill.epochs=1")


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    # counting every choice on SPU takes long, and has tests of its own
    monkeypatch.setattr(
        "mpcvit.pipeline.run.measure_latency",
        lambda model, profile, kinds, progress: estimate(model, profile.network),
    )
    monkeypatch.setattr("mpcvit.pipeline.run.CALIBRATION_IMAGES", 32)

    def run(*more, **how):
        settings = (part for setting in SMALLER for part in ("--set", setting))
        arguments = ("--ratios", "0.5", "--simulate", "--runs", tmp_path, "--json")
        return invoke("pipeline", TINY, *settings, *arguments, *more, **how)

    return run


def steps_of(done):
    return {(one["step"], one["subject"]): one for one in json.loads(done.stdout)["steps"]}


def test_the_whole_way_and_again(pipeline, tmp_path):
    done = pipeline()
    steps = steps_of(done)
    found = "mpcvit-0.5-distilled"
    assert list(steps) == [
        ("teacher", "softmax"),
        ("profile", "SEMI2K"),
        ("search", "search"),
        ("derive", found),
        ("retrain", found),
        ("lower", "softmax"),
        ("lower", found),
        ("measure", "softmax, plain"),
        ("measure", f"{found}, plain"),
        ("measure", f"{found}, lowered"),
    ]
    assert not any(one["reused"] for one in steps.values())
    assert "cannot be lowered" in steps["lower", "softmax"]["outcome"]
    folder = tmp_path / "digits-tiny"
    with (folder / "pipeline.csv").open() as file:
        rows = {(row["network"], row["form"]): row for row in csv.DictReader(file)}
    plain, lowered = rows[found, "plain"], rows[found, "lowered"]
    assert int(lowered["exchanges"]) < int(plain["exchanges"]) / 2
    assert (plain["agree"], plain["measured_s"]) == ("1", "")
    assert "INSECURE" in plain["warning"]
    charts = json.loads(done.stdout)["charts"]
    assert {"trade-off-digits", "heads", "alpha", "lowered-exchanges", "layer-bytes"} <= set(charts)
    assert "lowered-measured-s" not in charts  # threads measure nothing
    assert (folder / "report.html").exists()

    again = steps_of(pipeline())
    left_out = [name for name, one in again.items() if not one["reused"]]
    assert left_out == [("lower", "softmax")]

    shutil.rmtree(folder / found / "seed-0" / "program")
    third = steps_of(pipeline())
    assert [name for name, one in third.items() if not one["reused"]] == [
        *left_out,
        ("lower", found),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ratios", "1.5"), "a ratio must lie in [0, 1], not be 1.5"),
        (("--budgets", "soon"), "must be seconds"),
        (("--baselines", "quad"), "there is no baseline 'quad'"),
        (("--profile", "semi2k"), "names no network"),
    ],
)
def test_mistakes_are_told_before_anything_runs(pipeline, tmp_path, arguments, message):
    assert message in pipeline(*arguments, code=2).stderr
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_from_something_else_is_made_again(tmp_path):
    path, made = tmp_path / "thing", []

    def make():
        made.append(path.write_text("x"))

    assert [make_once(path, {"from": source}, make) for source in "aab"] == [False, True, False]
    assert len(made) == 2

    def fail():
        raise UserError("stopped")

    with pytest.raises(UserError):
        make_once(path, {"from": "c"}, fail)
    assert not make_once(path, {"from": "b"}, make)  # a failed step leaves no mark
    assert not make_once(path, {"from": "b"}, make, lambda path: fail())  # nor is it loadable

"""The whole method on digits, through the commands that a user types."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import invoke

CONFIG = Path("digits-quick")
CHANCE = 0.1  # of ten digits
RELU_SOFTMAX_POINTS = 1.0  # how far the found network may fall behind the ReLU-softmax one


def trained(*arguments):
    """What a command that trains prints, as JSON."""
    # minutes of training, unlike the seconds of other tests, pay for a compiler that optimises
    environment = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-m", "mpcvit", *map(str, arguments), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mpcvit(*arguments):
    """What any other command prints, as JSON."""
    return json.loads(invoke(*arguments, "--json").stdout)


def teacher_search_derive_retrain(*changes):
    """Run the method; return what training the ReLU-softmax network and deriving printed."""
    settings = [word for change in changes for word in ("--set", change)]
    teacher = trained(
        "train", CONFIG, *settings, "--set", "model.attention=softmax", "--out", "runs/teacher"
    )
    relu_softmax = trained(
        "train", CONFIG, *settings, "--set", "model.attention=relu_softmax", "--out", "runs/rs"
    )
    mpcvit("estimate", CONFIG, *settings, "--out", "latency.json")
    found = trained(
        "search", CONFIG, *settings, "--latency", "latency.json", "--out", "runs/search"
    )
    assert max(found["alpha_mean_per_layer"]) < 1  # something was given up
    derived = mpcvit("derive", "runs/search", "--relu-softmax-ratio", 0.5, "--out", "arch.json")
    trained(
        *("retrain", CONFIG, *settings, "--arch", "arch.json", "--teacher", teacher["model"]),
        *("--out", "runs/mpcvit-0.5"),
    )
    return relu_softmax, derived


def compared():
    rows = mpcvit("compare", "runs/teacher", "runs/rs", "runs/mpcvit-0.5")
    return {Path(row["name"]).name: row for row in rows}


@pytest.mark.long
def test_one_layer(tmp_path, monkeypatch):
    """Every command once, as far as numbers do not depend on a long training."""
    monkeypatch.chdir(tmp_path)
    _, derived = teacher_search_derive_retrain(
        *("model.depth=1", "train.epochs=3", "search.epochs=2", "distill.epochs=3"),
    )
    assert (derived["kept"], derived["units"]) == (2, 4)
    rows = compared()
    mixed = rows["mpcvit-0.5"]
    assert mixed["heads"] == "2 scaling + 2 relu_softmax"
    assert mixed["top1"] > 3 * CHANCE
    assert mixed["sent_mb"] < rows["rs"]["sent_mb"] < rows["teacher"]["sent_mb"]
    assert mixed["modelled_s"] < rows["teacher"]["modelled_s"]


@pytest.mark.long
def test_teacher_search_derive_retrain_compare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relu_softmax, derived = teacher_search_derive_retrain()
    assert (derived["kept"], derived["units"]) == (4, 8)
    rows = compared()
    mixed, plain = rows["mpcvit-0.5"], rows["rs"]
    assert mixed["heads"] == "4 scaling + 4 relu_softmax"
    assert 100 * mixed["top1"] >= 100 * relu_softmax["test_top1"] - RELU_SOFTMAX_POINTS
    # where both kinds stay in every layer the exchanges do; bytes are saved head by head
    assert mixed["sent_mb"] < plain["sent_mb"] < rows["teacher"]["sent_mb"]
    assert mixed["modelled_s"] < rows["teacher"]["modelled_s"]
    for ratio in (0.1, 0.3, 0.7):  # one search yields every ratio
        mpcvit("derive", "runs/search", "--ratio", ratio, "--out", f"{ratio}.json")
    cheapest = mpcvit("derive", "runs/search", "--ratio", 0, "--out", "cheap.json")
    budget = f"{(cheapest['seconds'] + derived['seconds']) / 2}s"
    within = mpcvit("derive", "runs/search", "--latency-budget", budget, "--out", "budget.json")
    assert cheapest["seconds"] <= within["seconds"] <= float(budget[:-1])

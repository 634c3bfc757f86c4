"""Shell completion, asked as a shell asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mpcvit.artifacts.shipped import PROFILES, shipped_names
from mpcvit.cli import app
from mpcvit.experiments.catalogue import EXPERIMENTS


def complete(line):
    """Return what bash is offered for the last word of a line."""
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    runner = CliRunner()
    result = runner.invoke(
        app, [], env={"_MPCVIT_COMPLETE": "complete_bash", **asked}, prog_name="mpcvit"
    )
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("mpcvit run model photo --profile ", shipped_names(PROFILES)),
        ("mpcvit run model photo --profile cheetah-", ["cheetah-lan", "cheetah-wan"]),
        ("mpcvit predict photo --profile aby", ["aby3", "aby3-wan"]),
        ("mpcvit lower model --profile cheetah-w", ["cheetah-wan"]),
        ("mpcvit train digits-", ["digits-quick", "digits-tiny"]),
        ("mpcvit configs cifar100", ["cifar100"]),
        ("mpcvit pipeline tiny", ["tiny-imagenet"]),
        ("mpcvit experiment ", [experiment.name for experiment in EXPERIMENTS]),
        ("mpcvit experiment trade-off cifar10-d", ["cifar10-demo"]),
        ("mpcvit bench dealer --network relu", ["relu_softmax"]),
        ("mpcvit bench threads --networks linformer,relu", ["linformer,relu_softmax"]),
        ("mpcvit bench network --networks relu", ["relu_softmax", "relu_softmax-gelu_tanh"]),
        (
            "mpcvit bench network --networks scaling,linf",
            ["scaling,linformer", "scaling,linformer-0.3", "scaling,linformer-0.7"],
        ),
        ("mpcvit bench lowering --profiles cheetah,aby3-", ["cheetah,aby3-wan"]),
        ("mpcvit train ./", []),  # bash then completes files
    ],
)
def test_names(line, offered):
    assert complete(line) == offered


def test_folders_and_files_of_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained, searched = Path("runs/digits/softmax/seed-0"), Path("runs/digits/search/seed-0")
    for folder in (trained / "program", searched, Path("runs/empty"), Path("mine")):
        folder.mkdir(parents=True)
    for file in (
        trained / "model.safetensors",
        trained / "program" / "program.json",
        searched / "search.json",
        Path("mine/program.json"),
        Path("own.safetensors"),
    ):
        file.touch()
    checkpoints = ["own.safetensors", str(trained / "model.safetensors")]
    assert complete("mpcvit report ") == [str(searched), str(trained)]
    assert complete("mpcvit compare runs/digits/sof") == [str(trained)]
    assert complete("mpcvit derive ") == [str(searched)]
    assert complete("mpcvit evaluate ") == [*checkpoints, "mine", str(trained / "program")]
    assert complete("mpcvit retrain digits --teacher ") == checkpoints
    assert complete("mpcvit explain ") == ["mine", str(trained / "program")]
    assert complete("mpcvit run mod") == []


@pytest.mark.parametrize("line", ["bench network --networks ", "experiment ", "run "])
def test_completion_is_light(line):
    code = (
        "import sys; sys.argv[0] = 'mpcvit'; from mpcvit.cli import app, main\n"
        "try: main()\n"
        "finally: print({'jax', 'flax', 'spu', 'matplotlib'} & set(sys.modules), file=sys.stderr)"
    )
    words = f"mpcvit {line}"
    env = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "_MPCVIT_COMPLETE": "complete_bash", **env},
    )
    assert result.stderr.strip().splitlines()[-1] == "set()"
    assert result.stdout or line == "run "

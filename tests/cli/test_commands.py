"""The command line, as a user types it."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mpcvit
from mpcvit.artifacts.architecture import Architecture
from mpcvit.classifier import Classifier
from mpcvit.kinds import table
from tests.command import invoke
from tests.configs import CONFIGS, TINY
from tests.docs.pages import ROOT
from tests.models import random_pixels, small_checkpoint, small_config

COMMANDS = (
    ["train"],
    ["estimate"],
    ["search"],
    ["derive"],
    ["retrain"],
    ["compare"],
    ["experiment"],
    ["evaluate"],
    ["show"],
    ["import"],
    ["run"],
    ["certs"],
    ["serve"],
    ["predict"],
    ["bench"],
    ["bench", "network"],
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run's folder, and what the command printed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    return folder, invoke("train", TINY, "--out", folder).output


@pytest.fixture(scope="module")
def run_folder(trained):
    return trained[0]


def test_help_is_quick_and_light():
    """Neither JAX nor SPU is imported for help; measured in modules, not in seconds."""
    code = (
        "import sys; from typer.testing import CliRunner; from mpcvit.cli import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "print({'jax', 'flax', 'spu', 'numpy', 'matplotlib', 'cryptography'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert output.stdout.strip() == "set()"


def test_ctrl_c_before_a_command_has_begun_shows_no_traceback():
    """While Python still reads its packages, as the installed command does."""
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    assert 'mpcvit = "mpcvit.__main__:main"' in project
    code = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from mpcvit.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_that_falls_into_a_destructor_is_not_lost():
    """Python itself would print that it was ignored, and go on."""
    code = """
import os, signal, sys, time, types
from mpcvit.__main__ import main
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
def command():
    Dying()
    time.sleep(5)
sys.modules["mpcvit.cli"] = types.SimpleNamespace(main=command)
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_sigterm_cleans_up_as_ctrl_c_does():
    code = """
import os, signal, sys, time, types
from mpcvit.__main__ import main
def command():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    finally:
        print("cleaned up")
sys.modules["mpcvit.cli"] = types.SimpleNamespace(main=command)
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself(command):
    output = invoke(*command, "--help").output
    if command != ["bench"]:
        assert "Example: mpcvit" in output


def test_version():
    assert invoke("--version").output == f"mpcvit {mpcvit.__version__}\n"


def test_train_prints_accuracy_and_files(trained):
    folder, output = trained
    assert re.search(r"^test accuracy  \d+\.\d\d %$", output, re.MULTILINE)
    names = {entry.name for entry in folder.iterdir()}
    assert {"model.safetensors", "state.safetensors", "log.jsonl", "curves.png"} <= names
    with Image.open(folder / "curves.png") as picture:
        assert picture.width > 500


def test_a_run_is_not_lost(run_folder):
    assert "already holds a run" in invoke("train", TINY, "--out", run_folder, code=2).stderr
    output = invoke("train", TINY, "--out", run_folder, "--resume", "--json").stdout
    assert json.loads(output)["model"] == str(run_folder / "model.safetensors")


def test_evaluate_matches_classes_by_name(tmp_path):
    """Folders named by the model's answers: all are right, whatever the order of names."""
    config = small_config(depth=1, classes=2)
    architecture = Architecture.uniform(table.SCALING, depth=1, heads=3)
    checkpoint = replace(small_checkpoint(config, architecture), classes=("wolf", "Polar Bear"))
    pixels, model = random_pixels(config, 12), Classifier(checkpoint)
    inputs = model.preprocess(list(pixels))
    checkpoint.parameters["head"]["bias"] -= np.median(model(inputs), axis=0)
    checkpoint.save(tmp_path / "model.safetensors")
    answers = model(inputs).argmax(axis=1)
    for name in ("wolf", "polar_bear"):
        (tmp_path / "data" / "test" / name).mkdir(parents=True)
    for index, answer in enumerate(answers):
        folder = tmp_path / "data" / "test" / ("wolf", "polar_bear")[answer]
        Image.fromarray(pixels[index]).save(folder / f"{index}.png")
    asked = ("evaluate", tmp_path / "model.safetensors", "--data", tmp_path / "data")
    result = json.loads(invoke(*asked, "--json").stdout)
    assert 0 < answers.sum() < 12
    assert (result["top1"], result["images"]) == (1.0, 12)
    assert "in another order: polar_bear is 1, wolf is 0" in invoke(*asked).output
    (tmp_path / "data" / "test" / "wolf").rename(tmp_path / "data" / "test" / "dog")
    assert "does not know: dog" in invoke(*asked, code=2).output


def test_evaluate_agrees_with_training(run_folder):
    result = json.loads(invoke("evaluate", run_folder / "model.safetensors", "--json").stdout)
    last = json.loads((run_folder / "log.jsonl").read_text().splitlines()[-1])
    assert result["images"] == 359
    assert result["top1"] == pytest.approx(last["test_top1"], abs=1e-6)
    text = invoke("evaluate", run_folder / "model.safetensors").output
    assert f"top-1    {100 * last['test_top1']:.2f} %" in text


def test_show(run_folder):
    output = invoke("show", run_folder / "model.safetensors").output
    for expected in ("E E", "E = softmax", "total", "commit", "data_fingerprint", "test_top1"):
        assert expected in output
    document = json.loads(invoke("show", run_folder / "model.safetensors", "--json").stdout)
    assert document["model"]["width"] == 16
    assert document["provenance"]["config"]["train"]["epochs"] == 2
    assert document["parameters"]["total"] > 1000


def test_an_architecture_file_is_used(tmp_path):
    architecture = Architecture.uniform(table.SCALING, depth=2, heads=2)
    architecture.save(tmp_path / "arch.json")
    invoke("train", TINY, "--out", tmp_path / "run", "--arch", tmp_path / "arch.json")
    assert mpcvit.load(tmp_path / "run" / "model.safetensors").architecture == architecture


GOLDEN = Path(__file__).parents[1] / "golden" / "foreign"


def test_import(tmp_path):
    out = tmp_path / "model.safetensors"
    output = invoke("import", GOLDEN / "authors_heads.pth.tar", "--out", out).output
    assert "R S R" in output
    model = mpcvit.load(out)
    with np.load(GOLDEN / "authors_heads.npz") as stored:
        assert np.abs(model(stored["images"]) - stored["logits"]).max() < 2e-5
    assert model.checkpoint.provenance.origin == "imported from authors_heads.pth.tar"
    assert model.checkpoint.data.mean == (0.4, 0.5, 0.6)


def test_import_asks_for_what_the_file_does_not_tell(tmp_path):
    source, out = GOLDEN / "authors_teacher.pth.tar", tmp_path / "model.safetensors"
    assert "add --mean and --std" in invoke("import", source, "--out", out, code=2).stderr
    assert not out.exists()
    (tmp_path / "names.txt").write_text("".join(f"name{index}\n" for index in range(11)))
    normalisation = ["--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2"]
    names = ["--class-names", tmp_path / "names.txt"]
    document = json.loads(
        invoke("import", source, "--out", out, *normalisation, *names, "--json").stdout
    )
    model = mpcvit.load(out)
    assert document["parameters"] == model.checkpoint.parameter_count
    assert model.classes[:2] == ("name0", "name1")
    wrong = invoke("import", source, "--out", "x", "--mean", "a", "--std", "1", code=2)
    assert "--mean must be numbers between commas" in wrong.stderr


def test_retrain(run_folder, tmp_path):
    architecture = Architecture.uniform(table.SCALING, depth=2, heads=2)
    architecture.save(tmp_path / "arch.json")
    command = ["retrain", TINY, "--arch", tmp_path / "arch.json", "--out", tmp_path / "run"]
    teacher = ["--teacher", run_folder / "model.safetensors"]
    document = json.loads(invoke(*command, *teacher, "--json").stdout)
    model = mpcvit.load(tmp_path / "run" / "model.safetensors")
    taught_by = mpcvit.load(run_folder / "model.safetensors").checkpoint
    assert model.architecture == architecture
    assert model.checkpoint.provenance.origin == "retrained with distillation"
    assert model.checkpoint.provenance.teacher == taught_by.parameter_digest
    assert model.checkpoint.provenance.metrics["test_top1"] == document["test_top1"]
    row = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[0])
    assert {"train_ce", "train_logits", "train_feature"} <= row.keys()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "none.toml"], "there is no configuration 'none.toml'"),
        (["train", TINY, "--set", "train.epoch=1"], "did you mean 'train.epochs'?"),
        (["train", TINY, "--resume", "--out", "nowhere"], "there is nothing to resume in nowhere"),
        (["train", TINY, "--resume", "--fresh"], "exclude each other"),
        (["train", TINY, "--arch", "none.json"], "there is no architecture"),
        (["train", CONFIGS / "cifar10.toml"], "data"),
        (["train", CONFIGS / "cifar10.toml", "--data", "nowhere"], "nowhere"),
        (["evaluate", "none.safetensors"], "there is no file none.safetensors"),
        (["show", TINY], "not a safetensors file"),
        (["import", "none.pth", "--out", "x.safetensors"], "none.pth"),
        (["import", TINY, "--out", "x.safetensors"], "digits-tiny.toml"),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:] if isinstance(value, list) else None,
)
def test_mistakes_get_one_sentence_and_code_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments, code=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


def test_real_process_exits_with_2(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "mpcvit", "show", "none"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 2
    assert result.stderr == "mpcvit: there is no file none\n"


def test_unwritable_folder():
    result = invoke("train", TINY, "--out", "/proc/run", code=2)  # not even root may write there
    assert "cannot write into /proc/run" in result.stderr


def test_completion_is_offered():
    """To the shell that the command is called from; the second command keeps it there."""
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m mpcvit --show-completion; true"],
        capture_output=True,
        text=True,
    )
    assert "complete" in result.stdout


def test_python_interface(run_folder, tmp_path):
    model = mpcvit.load(run_folder / "model.safetensors")
    assert model.config.classes == len(model.classes) == 10
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "digit.png")
    images = model.preprocess([tmp_path / "digit.png", pixels])
    assert images.shape == (2, 8, 8, 1)
    assert images.dtype == np.float32
    assert np.array_equal(images[0], images[1])
    expected = (pixels / 255 - 0.3) / 0.37
    assert np.abs(images[0, :, :, 0] - expected).max() < 1e-6  # float32 rounding near one
    logits = model(images)
    assert logits.shape == (2, 10)
    assert np.isfinite(logits).all()
    from mpcvit.errors import UserError

    with pytest.raises(UserError, match="preprocess"):
        model(pixels)
    with pytest.raises(UserError, match="uint8"):
        model.preprocess([pixels.astype(float)])

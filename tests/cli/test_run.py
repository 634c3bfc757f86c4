"""`mpcvit run`, as a user types it."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.record import RunRecord
from mpcvit.classifier import Classifier
from mpcvit.codec import load
from mpcvit.kinds import table
from tests.command import invoke
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import FXP18, assert_close

CONFIG = small_config(depth=1)
CHECKPOINT = small_checkpoint(
    CONFIG, Architecture.uniform(table.RELU, depth=1, heads=3, mlp=MlpForm.FUSED)
)

INSECURE = ("--profile", "profiles/semi2k.toml", "--insecure")


@pytest.fixture
def model(tmp_path):
    CHECKPOINT.save(tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index, pixels in enumerate(random_pixels(CONFIG, 2)):
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


def test_two_processes_and_a_record(model, pictures, tmp_path):
    out = tmp_path / "record.json"
    Image.new("RGB", (9, 7), "red").save(pictures / "other.png")
    (pictures / "broken.jpg").write_bytes(b"no picture")
    result = invoke("run", model, pictures, *INSECURE, "--out", out)
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{pictures / '0.png'}: class ")
    assert "%" not in lines[0]  # the class alone was revealed
    labels = [line.split()[0] for line in lines[3 : lines.index("")]]
    assert labels == ["revealed", "sent", "received", "exchanges", "computing", "trusted"]
    seconds = {
        name: float(number)
        for name, number in (line.rsplit(maxsplit=1) for line in lines[lines.index("") + 2 :])
    }
    parts = [seconds[f"  image {number}"] for number in (1, 2, 3)]
    assert sum(parts) + seconds["  set-up"] == pytest.approx(seconds["  total"], abs=0.05)
    assert seconds["  all images"] / 3 == pytest.approx(seconds["  per image"], abs=0.05)
    assert "left out" in result.stderr
    assert "broken.jpg is not an image" in " ".join(result.stderr.split())
    assert "INSECURE dealer" in result.stdout
    assert "1 of 3 images resized as in evaluation" in result.stderr
    record = load(RunRecord, out)
    assert record.transport == "processes"
    assert record.images == 3
    assert record.times.total_s == pytest.approx(record.elapsed_s)
    assert record.set_up.start_s > 0


def test_json_and_simulator(model, pictures):
    arguments = ("--profile", "aby3", "--simulate", "--batch-size", 2, "--json")
    arguments = (*arguments, "--reveal", "logits")
    document = json.loads(invoke("run", model, pictures / "1.png", pictures, *arguments).stdout)
    names = [prediction["image"] for prediction in document["predictions"]]
    assert names == [str(pictures / name) for name in ("1.png", "0.png", "1.png")]
    plain = Classifier(CHECKPOINT)
    expected = plain(plain.preprocess(names))
    logits = [prediction["logits"] for prediction in document["predictions"]]
    assert_close(logits, expected, FXP18)
    first = document["predictions"][0]
    assert first["class"] == first["top"][0]["class"]
    assert document["record"]["transport"] == "simulator"
    assert document["record"]["notes"] == []


def refused(*arguments):
    result = invoke("run", *arguments, code=2)
    assert result.stdout == ""
    assert result.stderr.startswith("mpcvit: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


def test_bad_pictures(model, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    Image.new("RGBA", (6, 6), (9, 9, 9, 128)).save(tmp_path / "glass.png")
    Image.fromarray(np.zeros((6, 6), np.float32)).save(tmp_path / "deep.tiff")
    simulate = ("--profile", "semi2k", "--simulate")
    for name, expected in (
        ("absent.png", "there is no file"),
        ("text.png", "is not an image"),
        ("glass.png", "is transparent in places"),
        ("deep.tiff", "holds numbers of unknown range"),
    ):
        assert expected in refused(model, tmp_path / name, *simulate)


def test_a_bad_picture_in_a_process_of_its_own(model, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    assert "text.png is not an image" in refused(model, tmp_path / "text.png")


def test_bad_models_and_profiles(model, pictures, tmp_path):
    from safetensors.numpy import save_file

    other = tmp_path / "other.safetensors"
    save_file({"x": np.zeros(1)}, other, {"format": "mpcvit-checkpoint/9"})
    assert "'mpcvit-checkpoint/9', not 'mpcvit-checkpoint/1'" in refused(other, pictures)
    assert "there is no file" in refused(tmp_path / "absent.safetensors", pictures)
    assert "did you mean 'cheetah'" in refused(model, pictures, "--profile", "cheetha")
    profile = tmp_path / "own.toml"
    profile.write_text('protocol = "GARBLED"')
    assert "'protocol' cannot be 'GARBLED'" in refused(model, pictures, "--profile", profile)
    profile.write_text('protocol = "SEMI2K"\ndealer = "first-party"')
    assert "'dealer' cannot be 'first-party'" in refused(model, pictures, "--profile", profile)


def test_interrupted(model, pictures, tmp_path):
    """Ctrl-C ends the command and its parties, and leaves no files."""
    # A shell starts what runs in the background with interrupts ignored, and children inherit it.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-m", "mpcvit", "run", model, pictures]
    command += ["--profile", "semi2k-wan", "--insecure"]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    signal.signal(signal.SIGINT, previous)
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*/*/party.log"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode in (1, 130)
    assert "Traceback" not in errors
    assert list(folder.iterdir()) == []

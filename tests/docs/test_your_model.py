"""The page about a model of one's own, command by command; fewer pictures, epochs and layers."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.command import invoke
from tests.docs.commands import commands
from tests.docs.pages import blocks
from tests.your_model import PAGE, write_model, write_photos

SMALLER = {"DEPTH": 1}
FEWER = [f"--set={section}.epochs=1" for section in ("train", "search", "distill")]
STEPS = ("fine-tune", "lower", "profile", "search", "derive", "retrain", "lower")
STEPS = (*STEPS, "measure", "measure")


def test_the_script_writes_what_an_import_reads(tmp_path):
    """With the page's own sizes; the output on the page is the one that comes."""
    write_model(tmp_path)
    words = next(own for own in commands(PAGE) if own[0] == "import")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        printed = invoke(*words).stdout
    assert any(printed in body for body in blocks(PAGE, ""))


def test_the_page_shows_the_steps_that_it_lists():
    (shown,) = (body for body in blocks(PAGE, "") if body.startswith("step "))
    assert tuple(line.split()[0] for line in shown.splitlines()[1:10]) == STEPS


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """Return the folder, and what each command printed."""
    folder = tmp_path_factory.mktemp("your-model")
    write_model(folder, **SMALLER)
    write_photos(folder, 150)
    outputs = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MPCVIT_CACHE", str(folder / "cache"))
        for words in commands(PAGE):
            line = " ".join(words)
            match words[0]:
                case "serve":
                    server = _serve(words)
                case "predict":
                    try:
                        outputs[line] = invoke(*words).output
                    finally:
                        os.kill(server.pid, signal.SIGINT)
                        server.wait(60)
                case "pipeline":
                    outputs[line] = invoke(*words, *FEWER).output
                case "import" | "run" | "certs":
                    outputs[line] = invoke(*_with_fewer_epochs(words, folder)).output
                case "lower":
                    outputs[line] = invoke(*_with_fewer_epochs(words, folder)).output
    return folder, outputs


def _with_fewer_epochs(words, folder):
    """Name the run folder that fewer epochs make."""
    return [re.sub(r"epochs-\d+", "epochs-1", word) for word in words]


def _serve(words):
    server = subprocess.Popen(
        [sys.executable, "-m", "mpcvit", *words], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    server.stdout.readline()  # it listens
    return server


@pytest.mark.long
def test_a_model_goes_from_a_folder_to_a_service(followed):
    folder, outputs = followed
    by_command = {line.split()[0]: text for line, text in outputs.items()}
    assert {"import", "lower", "pipeline", "run", "certs", "predict"} <= by_command.keys()
    assert "start: 20 arrays are taken over; new: none" in by_command["pipeline"].replace("\n", " ")
    assert "9 steps ran" in by_command["pipeline"]
    assert "0045.png" in by_command["run"]
    assert "0045.png" in by_command["predict"]
    report = (folder / "runs" / "finetune" / "report.html").read_text()
    assert "fine-tuned" in report

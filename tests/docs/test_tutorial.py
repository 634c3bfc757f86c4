"""The tutorial, command by command, with a smaller network and fewer epochs."""

import csv
import re
import shutil

import pytest
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

from mpcvit.cost.estimate import estimate
from tests.command import invoke
from tests.docs.commands import commands
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "tutorial.md"
SMALLER = {"epochs": 1, "depth": 1, "heads": 2, "width": 8, "batch_size": 128, "patch_size": 4}
PICTURES = 300
FOUND = "mpcvit-0.5-distilled"
PIPELINE = ["pipeline", "photos.toml", "--ratios", "0.5"]
# two hosts: tests/two_party and tests/hosts; training by itself: tests/cli; to lower once more
ELSEWHERE = ("serve", "predict", "train", "lower")


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """The folder, what each command printed, and what the pipeline printed when called again."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MPCVIT_CACHE", str(folder / "cache"))
        # counting every choice on SPU takes long, and has tests of its own
        patch.setattr(
            "mpcvit.pipeline.prices.measure_latency",
            lambda model, profile, kinds, progress: estimate(model, profile.network),
        )
        patch.setattr("mpcvit.pipeline.run.CALIBRATION_IMAGES", 32)
        digits = load_digits()
        few = Bunch(images=digits.images[:PICTURES], target=digits.target[:PICTURES])
        patch.setattr("sklearn.datasets.load_digits", lambda: few)
        exec(compile(blocks(PAGE, "python")[0], str(PAGE), "exec"), {})
        text = blocks(PAGE, "toml")[0]
        for key, value in SMALLER.items():
            text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
            assert count, f"the tutorial's configuration has no {key}"
        (folder / "photos.toml").write_text(text)
        outputs = {}
        for words in commands(PAGE):
            if words[0] == "lower":
                (program,) = (folder / "runs" / "photos" / FOUND).glob("seed-0-*/program")
                shutil.copytree(program, folder / "program")
            if words[0] not in ELSEWHERE and words != ["report", "record.json"]:
                outputs[" ".join(words)] = invoke(*_made_quick(words)).output
        again = invoke(*_made_quick(PIPELINE)).output
    return folder, outputs, again


def _made_quick(words):
    match words[0]:
        case "pipeline":
            return [*words, "--simulate"]
        case "report":
            return words[: words.index("--figures")]
        case "run":  # Cheetah in processes takes long, and has tests of its own
            return [*words[:-1], "semi2k", "--simulate"]
    return words


def test_every_kind_of_step_was_taken(followed):
    _, outputs, _ = followed
    assert {line.split()[0] for line in outputs} == {
        *("--help", "pipeline", "report", "explain", "evaluate", "run", "certs")
    }


def test_the_pipeline_tells_what_ran_and_what_was_reused(followed):
    folder, outputs, again = followed
    steps = [
        *(("teacher", "softmax"), ("profile", "SEMI2K"), ("search", "search")),
        *(("derive", FOUND), ("retrain", FOUND), ("lower", "softmax"), ("lower", FOUND)),
        *(("measure", f"softmax, {form}") for form in ("plain", "lowered")),
        *(("measure", f"{FOUND}, {form}") for form in ("plain", "lowered")),
    ]
    first = outputs[" ".join(PIPELINE)]
    for step, subject in steps:
        assert re.search(rf"^{step} +{subject} +ran ", first, re.MULTILINE)
    assert "11 steps ran" in first
    assert "0 steps ran" in again
    assert "11 were reused" in again
    with (folder / "runs" / "photos" / "pipeline.csv").open() as file:
        rows = {(row["network"], row["form"]): row for row in csv.DictReader(file)}
    plain, lowered = rows[FOUND, "plain"], rows[FOUND, "lowered"]
    assert int(lowered["exchanges"]) < int(plain["exchanges"]) / 2
    assert (plain["agree"], plain["measured_s"]) == ("1", "")
    assert "INSECURE" in plain["warning"]


def test_its_reports_show_every_part(followed):
    folder, _, _ = followed
    for page in (folder / "runs" / "photos" / "report.html", folder / "report.html"):
        text = page.read_text()
        for chart in ("trade-off-photos", "heads", "shares", "lowered-exchanges", "layer-bytes"):
            assert f'id="{chart}"' in text
        assert 'id="lowered-measured-s"' not in text  # threads measure nothing


def test_a_private_prediction(followed):
    _, outputs, _ = followed
    (output,) = (text for line, text in outputs.items() if line.startswith("run "))
    assert "photos/test/three/0045.png" in output
    assert "exchanges" in output

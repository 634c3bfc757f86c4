"""The tutorial, command by command, with a smaller network and fewer epochs."""

import csv
import re
import shutil

import pytest

from mpcvit.cost.estimate import estimate
from tests.cli.test_commands import invoke
from tests.docs.commands import ROOT, blocks, commands

PAGE = ROOT / "docs" / "tutorial.md"
SMALLER = {"epochs": 1, "depth": 1, "heads": 2, "width": 8, "batch_size": 128, "patch_size": 4}
# between hosts, which tests/two_party and tests/hosts try
ELSEWHERE = ("serve", "predict")
FOUND = "mpcvit-0.5-distilled"


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """What each command printed, in the order of the page."""
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("MPCVIT_CACHE", str(folder / "cache"))
        # counting every choice on SPU takes long, and has tests of its own
        patch.setattr(
            "mpcvit.pipeline.run.measure_latency",
            lambda model, profile, kinds, progress: estimate(model, profile.network),
        )
        patch.setattr("mpcvit.pipeline.run.CALIBRATION_IMAGES", 32)
        exec(compile(blocks(PAGE, "python")[0], str(PAGE), "exec"), {})
        text = blocks(PAGE, "toml")[0]
        for key, value in SMALLER.items():
            text, count = re.subn(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
            assert count, f"the tutorial's configuration has no {key}"
        (folder / "photos.toml").write_text(text)
        outputs = {}
        for words in commands(PAGE):
            if words[0] in ELSEWHERE or len(words) < 3:
                continue
            outputs[" ".join(words)] = invoke(*_made_quick(words)).output
        again = invoke(*_made_quick(["pipeline", "photos.toml", "--ratios", "0.5"])).output
        shutil.rmtree(folder / "runs" / "photos" / FOUND / "seed-0" / "program")
        third = invoke(*_made_quick(["pipeline", "photos.toml", "--ratios", "0.5"])).output
    return folder, outputs, again, third


def _made_quick(words):
    match words[0]:
        case "pipeline":
            return [*words, "--simulate"]
        case "lower":
            return [*words, "--images", "32"]
        case "run":  # Cheetah in processes takes long, and has tests of its own
            return [*words[:-1], "semi2k", "--simulate"]
    return words


def test_every_kind_of_step_was_taken(followed):
    _, outputs, _, _ = followed
    assert {line.split()[0] for line in outputs} == {
        *("train", "pipeline", "report", "lower", "explain", "evaluate", "run", "certs")
    }


def test_the_pipeline_tells_what_ran_and_what_was_reused(followed):
    folder, outputs, again, third = followed
    steps = [
        *(("teacher", "softmax"), ("profile", "SEMI2K"), ("search", "search")),
        *(("derive", FOUND), ("retrain", FOUND), ("lower", "softmax"), ("lower", FOUND)),
        *(("measure", "softmax, plain"), ("measure", f"{FOUND}, plain")),
        ("measure", f"{FOUND}, lowered"),
    ]
    first = outputs["pipeline photos.toml --ratios 0.5"]
    for step, subject in steps:
        assert re.search(rf"^{step} +{subject} +ran ", first, re.MULTILINE)
    assert "softmax attention cannot be lowered yet" in first
    assert "10 steps ran" in first
    # what cannot be lowered is tried anew
    assert re.findall(r"^(\w+) +(\S+) +ran ", again, re.MULTILINE) == [("lower", "softmax")]
    ran = re.findall(r"^(\w+) +(\S+) +ran ", third, re.MULTILINE)
    assert ran == [("lower", "softmax"), ("lower", FOUND)]
    with (folder / "runs" / "photos" / "pipeline.csv").open() as file:
        rows = {(row["network"], row["form"]): row for row in csv.DictReader(file)}
    plain, lowered = rows[FOUND, "plain"], rows[FOUND, "lowered"]
    assert int(lowered["exchanges"]) < int(plain["exchanges"]) / 2
    assert (plain["agree"], plain["measured_s"]) == ("1", "")
    assert "INSECURE" in plain["warning"]


def test_its_reports_show_every_part(followed):
    folder, _, _, _ = followed
    for page in (folder / "runs" / "photos" / "report.html", folder / "report.html"):
        text = page.read_text()
        for chart in ("trade-off-photos", "heads", "alpha", "lowered-exchanges", "layer-bytes"):
            assert f'id="{chart}"' in text
        assert 'id="lowered-measured-s"' not in text  # threads measure nothing
    assert (folder / "figures" / "heads.svg").exists()


def test_a_private_prediction(followed):
    _, outputs, _, _ = followed
    (output,) = (text for line, text in outputs.items() if line.startswith("run "))
    assert "photos/test/three/0045.png" in output
    assert "exchanges" in output

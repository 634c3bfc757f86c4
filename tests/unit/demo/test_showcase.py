"""What ships: whole, as good as it says, and as good as the documentation says."""

import re
import shutil
from dataclasses import replace

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.provenance import MODEL_FILE
from mpcvit.data import decode_image
from mpcvit.demo.showcase import DESCRIPTION, SHIPPED, Showcase, model_in
from mpcvit.errors import UserError
from mpcvit.lowering.program import SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.train.log import read_log
from tests.docs.pages import ROOT


@pytest.fixture(scope="module")
def showcase():
    return Showcase.load(SHIPPED)


def test_accuracies_are_those_of_the_checkpoints_and_their_logs(showcase):
    for network in showcase.networks:
        checkpoint = Checkpoint.load(model_in(SHIPPED, network.name, "plain"))
        provenance = checkpoint.provenance
        logged = read_log(SHIPPED / network.name)[-1]
        if checkpoint.data.validation_images:  # test images when it was packed
            assert logged["validation_top1"] == provenance.metrics["validation_top1"]
            # three standard deviations of the difference of 5,000 and 10,000 images at 80 %
            assert abs(network.top1["plain"] - logged["validation_top1"]) < 0.021
        else:
            assert network.top1["plain"] == logged["test_top1"] == provenance.metrics["test_top1"]
            assert provenance.data_fingerprint == showcase.data_fingerprint
        assert network.parameters == checkpoint.parameter_count
        assert (network.config, network.seed) == (
            provenance.config["name"],
            provenance.config["seed"],
        )
        assert provenance.config["data"]["path"] == ""  # the trainer's own
        assert abs(network.top1["lowered"] - network.top1["plain"]) < 0.01


def test_programs_are_of_the_very_networks_and_for_a_profile_that_is_safe(showcase):
    profile = load_profile(showcase.profile)
    assert profile.dealer is not Dealer.FIRST_PARTY_INSECURE
    assert profile.network.is_emulated
    for network in showcase.networks:
        checkpoint = Checkpoint.load(model_in(SHIPPED, network.name, "plain"))
        program = SecureProgram.load(model_in(SHIPPED, network.name, "lowered"))
        assert program.architecture == checkpoint.architecture
        assert program.provenance == checkpoint.provenance
        program.engine.apply(profile)


def test_the_plain_network_comes_first_and_costs_one_image(showcase):
    first, *others = showcase.columns
    assert (first.form, first.images) == ("plain", 1)
    assert all((one.form, one.images) == ("lowered", None) for one in others)
    stranger = replace(first, network="stranger")
    with pytest.raises(UserError, match="stranger, plain, which is not among"):
        replace(showcase, columns=(stranger,))


def test_samples_are_pictures_of_different_classes(showcase):
    checkpoint = Checkpoint.load(model_in(SHIPPED, showcase.networks[0].name, "plain"))
    size = checkpoint.model.image_size
    truths = [sample.truth for sample in showcase.samples]
    assert len(set(truths)) == len(truths) >= 4
    assert set(truths) <= set(checkpoint.classes)
    for sample in showcase.samples:
        picture = decode_image(SHIPPED / sample.file, channels=3, where=sample.file)
        assert picture.shape == (size, size, 3)


def test_documentation_states_these_accuracies(showcase):
    """The results page has a row for each network of the showcase, with its accuracies."""
    lines = (ROOT / "docs" / "results.md").read_text("utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("<!-- table: shipped"))
    rows = lines[start + 3 : lines.index("<!-- end -->", start)]
    stated = [[float(one) for one in re.findall(r"\d\d\.\d\d", row)] for row in rows]
    assert stated == [
        [round(100 * network.top1[form], 2) for form in ("plain", "lowered")]
        for network in showcase.networks
    ]


@pytest.mark.parametrize("change", ["altered", "missing", "added", "no showcase", "other format"])
def test_what_is_not_as_it_was_is_refused(tmp_path, showcase, change):
    folder = tmp_path / "showcase"
    shutil.copytree(SHIPPED, folder)
    file = folder / showcase.networks[0].name / MODEL_FILE
    match change:
        case "altered":
            file.write_bytes(file.read_bytes()[:-1] + b"x")
        case "missing":
            file.unlink()
        case "added":
            (folder / "more.txt").write_text("more")
        case "no showcase":
            (folder / DESCRIPTION).unlink()
        case "other format":
            (folder / DESCRIPTION).write_text('{"format": "other"}')
    with pytest.raises(UserError, match="showcase"):
        Showcase.load(folder)

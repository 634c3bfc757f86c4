"""Families that the real frameworks wrote, and what they make of pictures."""

import json
from pathlib import Path

import numpy as np
import PIL
import pytest
from safetensors.numpy import load_file

from mpcvit.artifacts.config import DataConfig, Pooling, load_config
from mpcvit.artifacts.image_fit import ImageFit
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.classifier import Classifier
from mpcvit.cli.making.start import load_start, settings_from
from mpcvit.codec import decode, encode
from mpcvit.data import decode_image, fit_image
from mpcvit.errors import UserError
from mpcvit.foreign import read_foreign
from mpcvit.foreign.preprocessing import read_huggingface, read_timm
from mpcvit.model.checkpoint import Checkpoint

GOLDEN = Path(__file__).parents[2] / "golden" / "families"
CASES = sorted(path.name for path in GOLDEN.iterdir() if (path / "config.json").is_file())
PICTURES = json.loads((GOLDEN / "pictures.json").read_text())
# Logits up to 5 in float32 on both sides; a wrong formula is off by 1e-3 and more.
LOGITS = 2e-5


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_framework(case, forward):
    stored, foreign = np.load(GOLDEN / f"{case}.npz"), read_foreign(GOLDEN / case)
    size = foreign.model.image_size  # a framework's patches may not reach the last pixels
    images = stored["images"][:, :size, :size]
    assert np.abs(forward(foreign, images) - stored["logits"]).max() < LOGITS


OF_PILLOW_13 = pytest.mark.skipif(
    int(PIL.__version__.partition(".")[0]) < 13,
    reason="the golden pictures were made by Pillow 13, which earlier ones resample otherwise",
)


@OF_PILLOW_13
@pytest.mark.parametrize("case", CASES)
def test_pictures_are_prepared_and_classified_as_there(case, tmp_path):
    stored, foreign = np.load(GOLDEN / f"{case}.npz"), read_foreign(GOLDEN / case)
    data = foreign.data_config()
    Checkpoint(
        model=foreign.model,
        architecture=foreign.architecture,
        data=data,
        classes=foreign.classes,
        parameters=foreign.parameters,
        provenance=Provenance(origin="imported", environment=Environment.current()),
    ).save(tmp_path / "model.safetensors")
    model = Classifier(Checkpoint.load(tmp_path / "model.safetensors"))
    inputs = model.preprocess([GOLDEN / "pictures" / name for name in PICTURES["names"]])
    pixels = (inputs * np.array(data.std) + np.array(data.mean)) * 255
    size = foreign.model.image_size
    assert np.abs(pixels - stored["pixels"][:, :size, :size]).max() < 1e-3
    assert np.abs(model(inputs) - stored["picture_logits"]).max() < LOGITS
    assert model.classes == ("ant", "bee", "cat", "dog", "emu")


@OF_PILLOW_13
@pytest.mark.parametrize("name", PICTURES["processors"])
def test_pixels_are_those_of_the_framework(name):
    entries, stored = PICTURES["processors"][name], np.load(GOLDEN / "pictures.npz")[name]
    if name.startswith("timm"):
        found = read_timm(
            {**entries, "mean": [0.5] * 3, "std": [0.5] * 3}, image_size=8, channels=3
        )
    else:
        found = read_huggingface(entries, usual="ViT", channels=3)
    for picture, expected in zip(PICTURES["names"], stored, strict=True):
        path = GOLDEN / "pictures" / picture
        pixels = decode_image(path, channels=3, where=picture)
        fitted = fit_image(pixels, len(expected), fit=found.fit)
        np.testing.assert_array_equal(fitted, expected, picture)


@pytest.mark.parametrize(
    ("case", "pooling", "extra", "pooled_norm", "embed_norm"),
    [
        ("hf_deit", Pooling.CLASS, 1, False, False),
        ("hf_deit_teacher", Pooling.CLASS_EXTRA, 1, False, False),
        ("hf_dinov2", Pooling.CLASS_MEAN, 0, False, False),
        ("hf_registers", Pooling.CLASS_MEAN, 3, False, False),
        ("hf_clip", Pooling.MEAN, 1, False, True),
        ("hf_siglip", Pooling.MEAN, 0, False, False),
        ("timm_distilled", Pooling.CLASS_EXTRA, 1, False, False),
        ("timm_deit3", Pooling.CLASS, 0, False, False),
        ("timm_registers", Pooling.MEAN, 3, True, False),
        ("timm_class_mean", Pooling.MEAN, 1, True, False),
        ("timm_clip", Pooling.CLASS, 0, False, True),
        ("hf_registers_few", Pooling.CLASS_MEAN, 3, False, False),
        ("timm_uncovered", Pooling.CLASS, 4, False, False),
        ("timm_plain_clip", Pooling.CLASS, 0, False, False),
        ("hf_clip_silent", Pooling.MEAN, 1, False, True),
    ],
)
def test_what_a_family_is_made_of(case, pooling, extra, pooled_norm, embed_norm):
    model = read_foreign(GOLDEN / case).model
    assert (model.pooling, model.extra_tokens) == (pooling, extra)
    assert (model.pooled_norm, model.embed_norm) == (pooled_norm, embed_norm)


@pytest.mark.parametrize(("case", "edge"), [("hf_deit", 15), ("timm_deit3", 17)])
def test_another_image_size_interpolates_positions(case, edge):
    plain, larger = read_foreign(GOLDEN / case), read_foreign(GOLDEN / case, image_size=12)
    before, after = (own.parameters["embed"]["position"] for own in (plain, larger))
    leading = plain.model.leading_tokens
    np.testing.assert_array_equal(after[:leading], before[:leading])
    assert after.shape == (larger.model.tokens, 10)
    # the corners of a finer grid lie beyond those of a coarser one; the middle is the mean
    middle = after[leading:].reshape(3, 3, 10)[1, 1]
    np.testing.assert_allclose(middle, before[leading:].mean(axis=0), atol=1e-5)
    assert (larger.model.image_size, larger.preprocessing.fit.edge) == (12, edge)


@pytest.mark.parametrize(
    ("case", "size", "uncovered"),
    [
        ("hf_siglip_uncovered", 8, 3),
        ("timm_uncovered", 12, 2),
        ("hf_siglip", 8, 0),
        ("hf_registers_few", 8, 0),
    ],
)
def test_patches_may_not_reach_the_last_pixels(case, size, uncovered):
    foreign = read_foreign(GOLDEN / case)
    assert foreign.model.image_size == size
    assert foreign.preprocessing.fit.uncovered == uncovered


def test_what_is_not_covered_survives_a_checkpoint_and_ends_with_another_size():
    data = load_start(GOLDEN / "hf_siglip_uncovered").data
    assert decode(DataConfig, encode(data), "data") == data
    assert data.fit.scaled(8, 8) == data.fit
    assert data.fit.scaled(8, 16).uncovered == 0
    assert "uncovered" not in encode(ImageFit())
    larger = read_foreign(GOLDEN / "hf_siglip_uncovered", image_size=12)
    assert (larger.model.image_size, larger.preprocessing.fit.uncovered) == (12, 0)


def test_a_picture_larger_than_the_network_was_made_for_is_refused(edited):
    sizes = {"size": {"height": 10, "width": 10}}  # patches would cover 8
    folder = edited(GOLDEN / "hf_siglip", preprocessing=sizes)
    with pytest.raises(UserError, match=r"makes images of 10: mend that file$"):
        read_foreign(folder)


def test_the_size_that_is_proposed_can_be_taken(edited):
    sizes = {"size": {"height": 14, "width": 14}}
    folder = edited(GOLDEN / "hf_siglip", preprocessing=sizes)
    with pytest.raises(UserError, match="add --image-size 12 to interpolate"):
        read_foreign(folder)
    assert read_foreign(folder, image_size=12).preprocessing.fit.uncovered == 2


def test_image_sizes_that_do_not_fit_are_refused(golden):
    with pytest.raises(UserError, match="patches of 4 pixels, so an image of 9"):
        read_foreign(GOLDEN / "hf_deit", image_size=9)
    with pytest.raises(UserError, match="--image-size is for models of timm"):
        read_foreign(golden / "authors_heads.pth.tar", image_size=8)


def test_a_network_without_its_classifier_is_refused(edited):
    folder = edited(GOLDEN / "hf_dinov2", {"classifier.weight": None, "classifier.bias": None})
    with pytest.raises(UserError, match="has no classifier, only the network before it"):
        read_foreign(folder)


@pytest.mark.parametrize("case", ["hf_deit", "timm_deit3"])
def test_a_network_alone_is_told_from_other_networks(case, edited):
    """The frameworks leave the family's prefix out where there is no classifier."""
    names = list(load_file(GOLDEN / case / "model.safetensors"))
    tensors = {name: None for name in names if "head" in name or "classifier" in name}
    tensors |= {name: None for name in names if name.startswith("deit.")}
    bare = {name[5:]: np.ones(3, np.float32) for name in names if name.startswith("deit.")}
    with pytest.raises(UserError, match="has no classifier, only the network before it"):
        read_foreign(edited(GOLDEN / case, {**tensors, **bare}))


def test_another_family_is_refused_by_its_name(edited):
    swin = {"swin.layernorm.weight": np.ones(3, np.float32)}
    names = list(load_file(GOLDEN / "hf_deit" / "model.safetensors"))
    tensors = {**dict.fromkeys(names), **swin}
    folder = edited(GOLDEN / "hf_deit", tensors, config={"model_type": "swin"})
    with pytest.raises(UserError, match="is a model of type swin; those that can be read"):
        read_foreign(folder)


def test_a_training_may_start_from_a_family():
    start = load_start(GOLDEN / "hf_registers")
    digits = ["data.source=digits", "model.image_size=32"]
    settings = settings_from(start, Path("cifar10"), None, digits)
    config = load_config(Path("cifar10"), settings)
    assert (config.model.extra_tokens, config.model.pooling) == (3, Pooling.CLASS_MEAN)
    assert (start.data.fit.edge, config.data.fit.edge) == (11, 44)  # of images of 8 and 32
    settings = settings_from(start, Path("cifar10"), None, [*digits, "data.eval_crop=0.9"])
    assert load_config(Path("cifar10"), settings).data.fit == ImageFit()

"""Hugging Face's folders beyond the golden ones."""

import numpy as np
import pytest

from mpcvit.artifacts.config import Activation
from mpcvit.errors import UserError
from mpcvit.foreign import read_foreign


def test_file_alone_is_refused(golden):
    with pytest.raises(UserError, match="give the folder that holds both"):
        read_foreign(golden / "hf" / "model.safetensors", heads=2)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("gelu", Activation.GELU),
        ("gelu_new", Activation.GELU_TANH),
        ("gelu_pytorch_tanh", Activation.GELU_TANH),
        ("quick_gelu", Activation.GELU_SIGMOID),
        ("relu", Activation.RELU),
    ],
)
def test_activation_is_read(name, activation, edited):
    assert read_foreign(edited("hf", config={"hidden_act": name})).model.activation is activation


@pytest.mark.parametrize(
    ("config", "report"),
    [
        ({"hidden_act": "selu"}, "hidden_act 'selu'"),
        ({"num_attention_heads": "2"}, "num_attention_heads must be a whole number"),
        ({"num_attention_heads": None}, "add --heads"),
        ({"num_attention_heads": 4}, "divisible"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps must be a number"),
        ({"layer_norm_eps": -1e-6}, "'norm_eps' must be positive"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps must be a number"),
    ],
)
def test_unusable_configurations_are_refused(config, report, edited):
    with pytest.raises(UserError, match=report):
        read_foreign(edited("hf", config=config))


def test_heads_cannot_be_overruled(golden):
    with pytest.raises(UserError, match="has 2 heads, so --heads 11"):
        read_foreign(golden / "hf", heads=11)


def test_pooler_is_passed_over(edited):
    shapes = {"vit.pooler.dense.weight": (22, 22), "vit.pooler.dense.bias": (22,)}
    pooler = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    assert "pooler" not in read_foreign(edited("hf", pooler)).parameters


def test_relatives_with_other_parts_are_refused(edited):
    folder = edited("hf", {"vit.embeddings.mask_token": np.ones((1, 1, 22), np.float32)})
    with pytest.raises(UserError, match=r"also has vit\.embeddings\.mask_token$"):
        read_foreign(folder)


def test_biases_of_attention_are_all_or_none(edited):
    name = "vit.encoder.layer.1.attention.attention.key.bias"
    with pytest.raises(UserError, match=f"lacks {name}$"):
        read_foreign(edited("hf", {name: None}))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ({"0": "a", "1": "b", "2": "c", "3": "d"}, ("a", "b", "c", "d")),
        ({"0": "a"}, ("0", "1", "2", "3")),
        (None, ("0", "1", "2", "3")),
    ],
)
def test_labels_name_the_classes(labels, classes, edited):
    assert read_foreign(edited("hf", config={"id2label": labels})).classes == classes


@pytest.mark.parametrize(
    ("preprocessing", "mean"),
    [
        ({}, (0.4, 0.5, 0.6)),
        ({"do_normalize": False}, (0.0, 0.0, 0.0)),
        ({"do_rescale": False}, None),
        ({"rescale_factor": 1 / 127.5}, None),
        ({"image_std": [0, 0, 0]}, None),
    ],
)
def test_normalisation_is_read(preprocessing, mean, edited):
    assert read_foreign(edited("hf", preprocessing=preprocessing)).mean == mean


@pytest.mark.parametrize(
    ("preprocessing", "crop"),
    [
        ({"size": 256, "crop_size": 224}, 0.875),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 0.875),
        ({"size": {"height": 0}, "crop_size": 224}, None),
        ({"crop_size": 224}, None),  # larger than the image
    ],
)
def test_centre_crop_is_read(preprocessing, crop, edited):
    folder = edited("hf", preprocessing={"do_center_crop": True, **preprocessing})
    assert read_foreign(folder).eval_crop == crop

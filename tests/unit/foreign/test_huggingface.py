"""Hugging Face's folders beyond the golden ones."""

import json

import numpy as np
import pytest

from mpcvit.artifacts.config import Activation
from mpcvit.artifacts.image_fit import FitRule, ImageFit, Resample
from mpcvit.errors import UserError
from mpcvit.foreign import read_foreign

SQUASH, SHORTER, BILINEAR = FitRule.SQUASH, FitRule.SHORTER, Resample.BILINEAR


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
        ({"hidden_act": ["gelu"]}, r"hidden_act \['gelu'\]"),
        ({"num_attention_heads": "2"}, "num_attention_heads .* must be a whole number"),
        ({"num_attention_heads": None}, "add --heads"),
        ({"num_attention_heads": 4}, r"safetensors cannot be used: .* divisible"),
        ({"num_hidden_layers": 3}, "has 2 layers, but its config.json says num_hidden_layers = 3"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps .* must be a number"),
        ({"layer_norm_eps": -1e-6}, "'norm_eps' must be positive"),
        ({"layer_norm_eps": float("inf")}, "layer_norm_eps .* must be a number"),
        ({"image_size": [3, 27]}, "takes images of 3 x 27 pixels.*only square"),
        ({"image_size": "9"}, "takes images of 9 pixels"),
        ({"quantization_config": {"load_in_8bit": True}}, "is quantised, as quantization_config"),
        ({"model_type": "swin"}, "is a model of type swin; those that can be read"),
        ({"model_type": ["vit"]}, "is a model of type"),
    ],
)
def test_unusable_configurations_are_refused(config, report, edited):
    with pytest.raises(UserError, match=report):
        read_foreign(edited("hf", config=config))


@pytest.mark.parametrize("config", [{"image_size": [9, 9]}, {"model_type": "vit_msn"}])
def test_configurations_that_say_the_same_are_read(config, edited):
    assert read_foreign(edited("hf", config=config)).model.image_size == 9


def test_a_single_output_is_refused(edited):
    head = {"classifier.weight": np.ones((1, 22), np.float32), "classifier.bias": np.ones(1, "f4")}
    with pytest.raises(UserError, match="has a single output, so there are no classes"):
        read_foreign(edited("hf", head))


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
        ({"3": "d", "2": "c", "1": "b", "0": "a"}, ("a", "b", "c", "d")),
        ({"0": 7, "1": 5, "2": 3, "3": 1}, ("7", "5", "3", "1")),
        ({}, ("0", "1", "2", "3")),
        (None, ("0", "1", "2", "3")),
    ],
)
def test_labels_name_the_classes(labels, classes, edited):
    assert read_foreign(edited("hf", config={"id2label": labels})).classes == classes


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({"0": "a"}, "1 names"),
        ({str(number): "a" for number in range(7)}, "7 names"),
        ({"1": "a", "2": "b", "3": "c", "4": "d"}, "4 names"),  # counted from one
        ({"a": "0", "b": "1", "c": "2", "d": "3"}, "4 names"),  # label2id
        ({"0": "a", "1": "b", "2": "c", "3": None}, "4 names"),
        ("four", "no names"),
    ],
)
def test_labels_that_do_not_fit_the_classifier_are_refused(labels, found, edited):
    folder = edited("hf", config={"id2label": labels})
    with pytest.raises(UserError, match=f"has 4 classes, but id2label .* has {found}"):
        read_foreign(folder)
    names = ["a", "b", "c", "d"]
    assert read_foreign(folder, class_names=names).classes == tuple(names)


@pytest.mark.parametrize(
    ("preprocessing", "mean", "std"),
    [
        ({}, (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)),
        ({"do_normalize": False}, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
        ({"do_rescale": False, "do_normalize": False}, (0,) * 3, (1 / 255,) * 3),
        ({"rescale_factor": 1 / 127.5}, (0.2, 0.25, 0.3), (0.1, 0.15, 0.05)),
        # null leaves it to the processor
        ({"do_rescale": None, "do_normalize": None}, (0.4, 0.5, 0.6), (0.2, 0.3, 0.1)),
    ],
)
def test_normalisation_is_read(preprocessing, mean, std, edited):
    found = read_foreign(edited("hf", preprocessing=preprocessing)).preprocessing
    np.testing.assert_allclose(found.mean, mean)
    np.testing.assert_allclose(found.std, std)


@pytest.mark.parametrize(
    ("preprocessing", "fit"),
    [
        ({}, ImageFit(rule=SQUASH, edge=9, resample=Resample.BILINEAR)),
        ({"size": 9, "resample": 1}, ImageFit(rule=SQUASH, edge=9, resample=Resample.LANCZOS)),
        ({"size": [9, 9], "resample": None}, ImageFit(rule=SQUASH, edge=9, resample=BILINEAR)),
        (
            {"size": 11, "crop_size": 9, "image_processor_type": "DeiTFeatureExtractor"},
            ImageFit(rule=SQUASH, edge=11, resample=BILINEAR),
        ),
        (
            {"size": 11, "crop_size": 9, "image_processor_type": "CLIPImageProcessorFast"},
            ImageFit(rule=SHORTER, edge=11, resample=BILINEAR),
        ),
        (
            {
                **{"size": {"shortest_edge": 11}, "crop_size": {"height": 9, "width": 9}},
                **{"do_center_crop": True, "resample": 3},
            },
            ImageFit(rule=SHORTER, edge=11),
        ),
    ],
)
def test_the_rule_for_sizes_is_read(preprocessing, fit, edited):
    assert read_foreign(edited("hf", preprocessing=preprocessing)).preprocessing.fit == fit


@pytest.mark.parametrize(
    ("preprocessing", "report"),
    [
        ({"do_resize": False}, "has do_resize = false, .*set it to true"),
        ({"do_normalize": "false"}, "has do_normalize 'false', which must be true or false"),
        ({"do_pad": True}, "has do_pad, which cannot be honoured"),
        ({"size": {"shortest_edge": 9}}, "scales the shorter side and cuts nothing"),
        ({"size": {"longest_edge": 9}}, "has size with longest_edge"),
        ({"size": {"height": 9, "width": 8}}, r"has a size of \[9, 8\], but images must be square"),
        ({"size": None}, "has size None, but a number of pixels"),
        ({"size": True}, "has size True, but a number of pixels"),
        ({"size": 10}, "takes images of 9 pixels, but .* makes images of 10"),
        ({"do_center_crop": True, "crop_size": 10}, "crop_size is 10, but size only 9"),
        ({"do_center_crop": True}, "has crop_size None"),
        ({"resample": 17}, "has resample 17, which is no filter"),
        ({"resample": "bicubic"}, "has resample 'bicubic'"),
        ({"rescale_factor": 0}, "has rescale_factor 0, which must be a positive number"),
        ({"rescale_factor": 1e-320}, "has rescale_factor 1e-320"),
        ({"rescale_factor": float("inf")}, "has rescale_factor inf"),
        ({"image_std": [0, 0, 0]}, "no deviation of 0"),
        ({"image_mean": [0.5]}, "a number for each of 3 channels"),
        ({"image_processor_type": "ConvNextImageProcessor"}, "for a ConvNextImageProcessor, but"),
        ({"image_processor_type": ["ViT"]}, r"for a \['ViT'\], but"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(preprocessing, report, edited):
    with pytest.raises(UserError, match=f"preprocessor_config.json .*{report}|{report}"):
        read_foreign(edited("hf", preprocessing=preprocessing))


def test_a_processor_of_several_kinds_nests_that_of_pictures(edited):
    folder = edited("hf")
    alone = read_foreign(folder).preprocessing
    whole = {"image_processor": json.loads((folder / "preprocessor_config.json").read_text())}
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps(whole))
    assert read_foreign(folder).preprocessing == alone
    whole["image_processor"]["do_resize"] = False
    (folder / "processor_config.json").write_text(json.dumps(whole))
    with pytest.raises(UserError, match=r"/processor_config\.json has do_resize = false"):
        read_foreign(folder)


def test_without_a_file_nothing_is_known(golden):
    foreign = read_foreign(golden / "hf_5")
    assert (foreign.preprocessing.fit, foreign.data_config()) == (None, None)
    assert foreign.data_config((0.5,) * 3, (0.5,) * 3).fit == ImageFit()

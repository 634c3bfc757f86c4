"""The authors' checkpoints beyond the golden ones: other alphas, heads and data."""

import numpy as np
import pytest

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.errors import UserError
from mpcvit.foreign import authors, read_foreign
from mpcvit.foreign.model import Options, Source
from mpcvit.foreign.tensor import Tensor
from mpcvit.kinds import table

R, S = table.RELU_SOFTMAX, table.SCALING
HEADS, PLUS, TEACHER = (f"authors_{case}.pth.tar" for case in ("heads", "plus", "teacher"))
ALPHA = "classifier.blocks.{}.self_attn.alpha"


def alphas(first, second):
    return {ALPHA.format(0): np.float32(first), ALPHA.format(1): np.float32(second)}


def network(classes, image_size, width=4, **names) -> dict[str, Tensor]:
    """One block with patches of 4, all zeros."""
    tokens, block = (image_size // 4) ** 2 + 1, "classifier.blocks.0"
    shapes = {
        "tokenizer.conv_layers.0.0.weight": (width, 3, 4, 4),
        "tokenizer.conv_layers.0.0.bias": (width,),
        "classifier.class_emb": (1, 1, width),
        "classifier.positional_emb": (1, tokens, width),
        f"{block}.self_attn.qkv.weight": (3 * width, width),
        f"{block}.self_attn.proj.weight": (width, width),
        f"{block}.self_attn.proj.bias": (width,),
        f"{block}.linear1.weight": (2 * width, width),
        f"{block}.linear1.bias": (2 * width,),
        f"{block}.linear2.weight": (width, 2 * width),
        f"{block}.linear2.bias": (width,),
        "classifier.fc.weight": (classes, width),
        "classifier.fc.bias": (classes,),
    }
    for name in (f"{block}.pre_norm", f"{block}.norm1", "classifier.norm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return {name: zeros(shape) for name, shape in {**shapes, **names}.items()}


def zeros(shape) -> Tensor:
    return Tensor(shape, "float32", lambda: np.zeros(shape, np.float32))


def convert(tensors, arguments=None, **options):
    source = Source(origin="file", tensors=tensors, arguments=arguments or {})
    return authors.convert(source, Options(**options))


@pytest.mark.parametrize("first", [[1], 1, [[[[1]]]]])
def test_one_alpha_speaks_for_its_layer(first, edited):
    foreign = read_foreign(edited(HEADS, alphas(first, [0])), heads=3)
    assert [layer.heads for layer in foreign.architecture.layers] == [(R, R, R), (S, S, S)]


def test_one_alpha_does_not_say_how_many_heads(edited):
    with pytest.raises(UserError, match="add --heads"):
        read_foreign(edited(HEADS, alphas([1], [0])))


@pytest.mark.parametrize("value", [0.5, -1, 2, 1.0001])
def test_other_alphas_are_a_search(value, edited):
    changed = alphas(np.reshape([1, 0, value], (1, 3, 1, 1)), np.ones((1, 3, 1, 1)))
    with pytest.raises(UserError, match="a search, not its result"):
        read_foreign(edited(HEADS, changed))


def test_other_betas_are_a_search(edited):
    beta = np.full((1, 10, 1), 0.25, np.float32)
    with pytest.raises(UserError, match=r"beta of layer 1 that is 0\.25"):
        read_foreign(edited(PLUS, {"classifier.blocks.1.beta": beta}))


def test_betas_that_keep_all_need_no_rows(edited):
    ones = np.ones((1, 10, 1), np.float32)
    changed = {f"classifier.blocks.{n}.beta": ones for n in (0, 1)}
    foreign = read_foreign(edited(PLUS, changed))
    assert {layer.mlp for layer in foreign.architecture.layers} == {MlpForm.ACTIVATED}


@pytest.mark.parametrize("shape", [(1, 5, 1, 1), (1, 1, 9, 1), (3,), (1, 3, 10, 1)])
def test_alpha_of_another_shape_is_refused(shape, edited):
    changed = alphas(np.ones((1, 3, 1, 1)), np.ones(shape))
    with pytest.raises(UserError, match="neither per layer, nor per head"):
        read_foreign(edited(HEADS, changed))


def test_alpha_in_one_layer_only_is_refused(edited):
    with pytest.raises(UserError, match=r"lacks classifier\.blocks\.1\.self_attn\.alpha"):
        read_foreign(edited(HEADS, {ALPHA.format(1): None}))


def test_heads_of_alpha_cannot_be_overruled(golden):
    assert read_foreign(golden / HEADS, heads=3).model.heads == 3
    with pytest.raises(UserError, match="has 3 heads, so --heads 5"):
        read_foreign(golden / HEADS, heads=5)


def test_heads_of_a_name_can_be_overruled(golden):
    assert read_foreign(golden / TEACHER, heads=7).model.heads == 7
    with pytest.raises(UserError, match="divisible"):
        read_foreign(golden / TEACHER, heads=3)


@pytest.mark.parametrize(
    ("arguments", "heads"),
    [
        ({"arch": "vit_7_4_32"}, 4),
        ({"arch": "vit_9_12_64"}, 12),
        ({"arch": "vit_2_4_32"}, 2),  # whose 4 is the patch size
        ({"arch": "vitlite", "model": "vit_7_4_32_teacher"}, 4),
    ],
)
def test_model_names_imply_heads(arguments, heads):
    assert convert(network(10, 32, width=24), arguments).model.heads == heads


@pytest.mark.parametrize(
    "arguments", [{}, {"arch": "vit_5_4_32"}, {"arch": 7}, {"arch": "vit_7_4_32\n\x1b"}]
)
def test_heads_are_never_guessed(arguments):
    with pytest.raises(UserError, match="add --heads"):
        convert(network(10, 32), arguments)


@pytest.mark.parametrize(
    ("classes", "image_size", "mean"),
    [(10, 32, 0.4914), (100, 32, 0.5071), (200, 64, 0.480), (10, 64, None), (7, 32, None)],
)
def test_data_set_is_known_by_classes_and_size(classes, image_size, mean):
    foreign = convert(network(classes, image_size), heads=2)
    assert (foreign.preprocessing.mean or [None])[0] == mean
    if mean is not None:
        assert foreign.preprocessing.fit.edge == image_size


def test_recorded_normalisation_comes_first():
    recorded = {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 3], "crop_pct": 0.9}
    foreign = convert(network(10, 32), recorded, heads=2)
    assert (foreign.preprocessing.mean, foreign.preprocessing.std) == (
        (0.1, 0.2, 0.3),
        (1.0, 2.0, 3.0),
    )
    assert foreign.preprocessing.fit.edge == 32  # on CIFAR, whatever is recorded
    assert convert(network(7, 32), recorded, heads=2).preprocessing.fit.edge == 35


@pytest.mark.parametrize("std", [None, [1, 1], [1, 1, 0], [1, 1, "x"], [1, 1, float("nan")]])
def test_unusable_normalisation_is_as_if_absent(std):
    assert (
        convert(network(7, 32), {"mean": [0, 0, 0], "std": std}, heads=2).preprocessing.mean is None
    )


def test_relatives_with_other_parts_are_refused():
    cct = {"classifier.attention_pool.weight": (1, 4)}
    with pytest.raises(UserError, match=r"also has classifier\.attention_pool\.weight"):
        convert(network(10, 32, **cct), heads=2)


def test_positions_must_make_a_square():
    odd = {"classifier.positional_emb": (1, 8, 4)}
    with pytest.raises(UserError, match="7 patches, which do not make a square"):
        convert(network(10, 32, **odd), heads=2)

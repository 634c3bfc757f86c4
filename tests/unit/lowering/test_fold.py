"""The exact passes: a folded network is the network, within float tolerance."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import BlockForm, Pooling
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.kinds import table
from mpcvit.lowering.calibrate import calibrate
from mpcvit.lowering.fold import fold
from mpcvit.lowering.jaxpr_walk import run_in_numpy
from mpcvit.model.vit import ViT
from tests import reference
from tests.marks import mostly_long
from tests.models import (
    ENDS,
    random_images,
    rows_of_every_kind,
    small_checkpoint,
    small_config,
    tame,
)
from tests.tolerances import F32, assert_close

K = table


def check(architecture, change=lambda parameters: None, **changes):
    config = small_config(depth=len(architecture.layers), **changes)
    checkpoint = small_checkpoint(config, architecture)
    change(checkpoint.parameters)
    images = np.asarray(random_images(config, 3))
    weights = fold(config, architecture, checkpoint.parameters)
    _, logits = calibrate(config, architecture, weights, images)
    vit = ViT(config, architecture)
    # in NumPy, as the network runs once, and compiling it would take most of the test
    variables = {"params": checkpoint.parameters}
    traced = jax.make_jaxpr(vit.apply, return_shape=True)(variables, images)
    given, _ = run_in_numpy(traced, variables, images)
    assert_close(logits, given, F32)
    exact = reference.vit(images, config, architecture, checkpoint.parameters)
    assert_close(logits, exact, F32)
    return weights


def two_layers(mlp=MlpForm.ACTIVATED):
    return Architecture(
        layers=(
            LayerArchitecture(heads=(K.RELU_SOFTMAX, K.SCALING, K.SQUARE), mlp=mlp),
            LayerArchitecture(heads=(K.QUAD2, K.RELU, K.RELU_SOFTMAX), mlp=mlp),
        )
    )


@pytest.mark.parametrize("block", BlockForm)
@pytest.mark.parametrize("form", MlpForm)
def test_every_form(block, form):
    check(two_layers(form), block=block)


@pytest.mark.parametrize("block", BlockForm)
def test_mean_pooling_biases_and_scaling_alone(block):
    architecture = Architecture.uniform(K.SCALING, depth=2, heads=3)
    check(architecture, block=block, pooling=Pooling.MEAN, qkv_bias=True)


@pytest.mark.parametrize("end", ENDS)
def test_every_end(end):
    check(Architecture.uniform(K.SCALING, depth=1, heads=3), block=BlockForm.PRE, **ENDS[end])


@pytest.mark.parametrize("end", ["class and mean", "norm of the mean", "norm of the embedding"])
def test_ends_without_a_last_norm(end):
    architecture = Architecture.uniform(K.SCALING, depth=1, heads=3)
    check(replace(architecture, norm=NormForm.LINEAR), block=BlockForm.PRE, **ENDS[end])


@pytest.mark.parametrize("block", BlockForm)
def test_forms_mixed_over_tokens(block):
    tokens = small_config().tokens
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(tokens))
    check(two_layers(forms), block=block)


@pytest.mark.parametrize(
    "form", [MlpForm.ACTIVATED, tuple(list(MlpForm)[i % len(MlpForm)] for i in range(10))]
)
@pytest.mark.parametrize("activation", Activation)
def test_every_activation(activation, form):
    check(two_layers(form), activation=activation)


@pytest.mark.parametrize("norm", [NormForm.LINEAR, NormForm.BATCH])
@pytest.mark.parametrize("form", MlpForm)
@pytest.mark.parametrize("block", BlockForm)
def test_norms_that_are_constants(block, form, norm):
    check(two_layers(form), block=block, norm=norm)


# which layer norms are kept, then the blocks of the lite form that multiply with a gain
KEPT = {
    (): [],
    ("1.norm2",): [],
    ("1.norm1",): [],
    ("norm",): [],
    ("1.norm2", "3.norm2"): [1],
    ("1.norm2", "4.norm1"): [1],
    ("0.norm1", "0.norm2", "norm"): [0],
}


def polynomial_vit(change=lambda parameters: None, **changes):
    """Return the folded weights of five layers with batch norms and learnt parabolas."""
    layers = Architecture.uniform(K.SCALING, depth=5, heads=3).layers
    changes = {"norm": NormForm.BATCH, "activation": Activation.QUADRATIC, **changes}

    def tamed(parameters):
        tame(parameters)
        change(parameters)

    return check(Architecture(layers=layers), tamed, **changes)


@pytest.mark.parametrize("block", BlockForm)
@pytest.mark.parametrize("kept", KEPT)
def test_kept_layer_norms(block, kept):
    weights = polynomial_vit(block=block, layer_norms=kept)
    multiplied = [index for index in range(5) if "residual" in weights[f"blocks_{index}"]["mlp"]]
    assert multiplied == ([] if block is BlockForm.PRE else KEPT[kept])


@pytest.mark.parametrize("pooling", [Pooling.CLASS, Pooling.MEAN])
@pytest.mark.parametrize("block", BlockForm)
def test_ends_are_merged_where_their_norms_are_constants(block, pooling):
    weights = polynomial_vit(block=block, pooling=pooling)
    assert "qkv" not in weights["blocks_0"]
    assert "down" not in weights["blocks_4"]["mlp"]
    weights = polynomial_vit(block=block, pooling=pooling, layer_norms=("0.norm1", "norm"))
    assert "qkv" in weights["blocks_0"]
    assert "down" in weights["blocks_4"]["mlp"]


@pytest.mark.parametrize("block", BlockForm)
def test_neighbours_are_merged_where_their_norms_are_constants(block):
    """A norm that stays keeps apart the two linears around it, and no others."""
    weights = polynomial_vit(block=block, layer_norms=("1.norm2", "3.norm1"))
    apart = {"qkv": [], "up": []}
    for index in range(5):
        own = weights[f"blocks_{index}"]
        apart["qkv"] += [index] * ("qkv" in own)
        apart["up"] += [index] * ("up" in own["mlp"])
    assert apart == {"qkv": [3], "up": [1]}


def test_other_mlps_are_not_merged():
    mlp = MlpForm.FUSED_RELU
    layers = Architecture.uniform(K.SCALING, depth=3, heads=3).layers
    layers = (layers[0], replace(layers[1], mlp=mlp), layers[2])
    changes = {"norm": NormForm.BATCH, "activation": Activation.QUADRATIC}
    weights = check(Architecture(layers=layers), tame, **changes)
    assert ["qkv" in weights[f"blocks_{index}"] for index in range(3)] == [False, False, True]
    assert "proj" in weights["blocks_1"]


def test_neighbours_stay_apart_where_merged_kernels_are_large():
    weights = polynomial_vit(tame, width=144)
    assert ["qkv" in weights[f"blocks_{index}"] for index in range(3)] == [False, True, True]
    assert "up" in weights["blocks_2"]["mlp"]


def test_ends_stay_apart_where_merged_kernels_are_large():
    def change(parameters):
        parameters["embed"]["patch"]["kernel"] *= 0.05

    weights = polynomial_vit(change, image_size=64, patch_size=32, classes=5000)
    assert "qkv" in weights["blocks_0"]
    assert "down" in weights["blocks_4"]["mlp"]


def test_a_gain_near_zero_is_multiplied_with():
    def change(parameters):
        parameters["blocks_2"]["norm2"]["scale"][3] = 1e-6

    weights = polynomial_vit(change, block=BlockForm.LITE, layer_norms=("1.norm2",))
    assert "residual" in weights["blocks_2"]["mlp"]
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(weights)) < 1e3


@pytest.mark.parametrize("block", BlockForm)
def test_parabolas_that_are_nearly_straight(block):
    def change(parameters):
        quadratic = parameters["blocks_1"]["mlp"]["quadratic"]
        quadratic["square"][:4] = 0.0, 1e-9, -1e-9, 0.0
        quadratic["slope"][3] = 0.0

    weights = polynomial_vit(change, block=block)
    usual, further = (weights[name]["proj"]["kernel"].shape[1] for name in ("blocks_0", "blocks_1"))
    assert further == usual + 15  # with the MLP's first linear
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(weights)) < 1e3


@pytest.mark.parametrize("pooling", [Pooling.CLASS, Pooling.MEAN])
@pytest.mark.parametrize("block", BlockForm)
def test_fewer_tokens_and_narrow_queries(block, pooling):
    first = pooling is Pooling.CLASS
    tokens = tuple(first + count for count in (16, 8, 8, 4, 2))
    polynomial_vit(block=block, pooling=pooling, image_size=8, layer_tokens=tokens, head_dim_qk=2)


def test_fewer_tokens_beside_extra_tokens():
    tokens = tuple(3 + count for count in (16, 8, 8, 4, 2))
    ends = {"pooling": Pooling.CLASS_MEAN, "extra_tokens": 2, "embed_norm": True}
    weights = polynomial_vit(image_size=8, layer_tokens=tokens, **ends)
    assert "qkv" in weights["blocks_0"]


@pytest.mark.parametrize("kind", K.KINDS.values(), ids=str)
def test_every_kind_on_fewer_tokens(kind):
    architecture = Architecture.uniform(kind, depth=3, heads=3)
    changes = {"image_size": 8, "layer_tokens": (17, 9, 9), "head_dim_qk": 3}
    check(architecture, **changes)


def test_choices_of_single_layers():
    """An architecture that chooses its own norms, activations and tokens."""
    chosen = FormChoice(
        norm1=NormForm.BATCH, activation=Activation.QUADRATIC, tokens=9, norm2=NormForm.LAYER
    )
    heads = (K.RELU_SOFTMAX, K.SCALING, K.SQUARE)
    layers = (
        LayerArchitecture(heads=heads),
        LayerArchitecture(heads=heads, form=chosen),
        LayerArchitecture(heads=heads, form=FormChoice(norm2=NormForm.BATCH)),
    )
    check(Architecture(layers=layers, norm=NormForm.BATCH), image_size=8)


@pytest.mark.parametrize("block", BlockForm)
def test_norms_that_clip(block):
    """They multiply and add before they clip, and their readers find nothing to fold."""
    weights = polynomial_vit(clip=0.7, block=block, layer_norms=("1.norm2",))
    assert set(weights["head"]) == {"kernel", "bias", "norm"}
    clipping = [name for name in ("norm1", "norm2") if name in weights["blocks_1"]]
    assert clipping == ["norm1"]
    assert "qkv" in weights["blocks_0"]  # which the embedding cannot give
    assert "down" in weights["blocks_4"]["mlp"]


@pytest.mark.parametrize("block", BlockForm)
def test_writers_are_centred(block):
    weights = check(two_layers(), block=block)
    written = [weights["embed"]["kernel"], weights["embed"]["offset"]]
    for layer in (weights["blocks_0"], weights["blocks_1"]):
        written += [layer["proj"]["kernel"], layer["proj"]["bias"]]
        written += [layer["mlp"]["down"]["kernel"], layer["mlp"]["down"]["bias"]]
    for array in written:
        assert np.abs(array.sum(axis=-1)).max() < 1e-5


@pytest.mark.parametrize("block", mostly_long(BlockForm, BlockForm.PRE))
@pytest.mark.parametrize("kind", K.KINDS.values(), ids=str)
def test_every_kind(block, kind):
    """The other form has all kinds at once, in the rows of `test_kinds_mixed_over_rows`."""
    check(Architecture.uniform(kind, depth=2, heads=3), block=block)


@pytest.mark.parametrize(("power", "offset"), [(2, 0.0), (6, 3.0), (8, -2.0)])
def test_another_power(power, offset):
    constants = {"power": power, "power_offset": offset}
    check(Architecture.uniform(K.POWER_SOFTMAX, depth=1, heads=3), constants=constants)


@pytest.mark.parametrize("block", BlockForm)
def test_kinds_mixed_over_rows(block):
    """Every kind in every layer, beside whole heads; the last layer reads one token of each."""
    rows = rows_of_every_kind(small_config().tokens)
    layers = (
        LayerArchitecture(heads=tuple(rows)),
        LayerArchitecture(heads=(K.LINFORMER, rows[1], K.XNORM)),
        LayerArchitecture(heads=(rows[2], (K.SCALING,) * 4 + (K.XNORM,) * 6, K.SCALING)),
    )
    check(Architecture(layers=layers), block=block, qkv_bias=True)


def test_scaling_beside_xnorm_takes_the_linear_order():
    rows = (K.SCALING,) * 4 + (K.XNORM,) * 6
    layer = LayerArchitecture(heads=(rows, K.SCALING, K.XNORM))
    check(Architecture(layers=(layer, layer)), pooling=Pooling.CLASS)

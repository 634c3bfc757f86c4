"""The exact passes: a folded network is the network, within float tolerance."""

import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import Activation, BlockForm, NormForm, Pooling
from mpcvit.classifier import Classifier
from mpcvit.kinds import table
from mpcvit.lowering.calibrate import calibrate
from mpcvit.lowering.fold import fold
from tests.models import random_images, rows_of_every_kind, small_checkpoint, small_config
from tests.tolerances import F32, assert_close

K = table


def check(architecture, **changes):
    config = small_config(depth=len(architecture.layers), **changes)
    checkpoint = small_checkpoint(config, architecture)
    images = np.asarray(random_images(config, 3))
    weights = fold(config, architecture, checkpoint.parameters)
    _, logits = calibrate(config, architecture, weights, images)
    assert_close(logits, Classifier(checkpoint)(images), F32)
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


@pytest.mark.parametrize("block", BlockForm)
def test_forms_mixed_over_tokens(block):
    tokens = small_config().tokens
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(tokens))
    check(two_layers(forms), block=block)


@pytest.mark.parametrize(
    "activation", [form for form in Activation if form is not Activation.QUADRATIC]
)
def test_every_activation(activation):
    check(two_layers(), activation=activation)


def test_linear_norms_keep_their_mean():
    check(two_layers(MlpForm.FUSED_RELU), norm=NormForm.LINEAR)


@pytest.mark.parametrize("block", BlockForm)
def test_writers_are_centred(block):
    weights = check(two_layers(), block=block)
    written = [weights["embed"]["kernel"], weights["embed"]["offset"]]
    for layer in (weights["blocks_0"], weights["blocks_1"]):
        written += [layer["proj"]["kernel"], layer["proj"]["bias"]]
        written += [layer["mlp"]["down"]["kernel"], layer["mlp"]["down"]["bias"]]
    for array in written:
        assert np.abs(array.sum(axis=-1)).max() < 1e-5


@pytest.mark.parametrize("block", BlockForm)
@pytest.mark.parametrize("kind", K.KINDS.values(), ids=str)
def test_every_kind(block, kind):
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

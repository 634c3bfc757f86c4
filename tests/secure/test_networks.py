"""Every kind, form and granularity in the simulator against the plaintext model."""

import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import Activation, BlockForm, Pooling
from mpcvit.classifier import Classifier
from mpcvit.kinds import table
from tests.marks import mostly_long
from tests.models import random_pixels, rows_of_every_kind, small_checkpoint, small_config
from tests.tolerances import FXP18, FXP18_EXP, assert_close

K = table
FEW_TOKENS = small_config(image_size=4)  # enough for every kind to have a row


def check(architecture, tolerance, profiles=("semi2k", "aby3"), **changes):
    config = small_config(depth=len(architecture.layers), **changes)
    checkpoint = small_checkpoint(config, architecture)
    pixels = random_pixels(config, 2)
    plain = Classifier(checkpoint)
    expected = plain(plain.preprocess(list(pixels)))
    for profile in profiles:  # compiled once for all of them
        result = mpcvit.run(
            checkpoint, pixels, profile, batch_size=2, reveal="logits", simulate=True
        )
        assert_close(result.logits, expected, tolerance)


def one_layer(kind=K.SCALING, mlp=MlpForm.LINEAR):
    return Architecture.uniform(kind, depth=1, heads=3, mlp=mlp)


def tolerance_of(kind):
    return FXP18_EXP if "exponential" in kind.sites else FXP18


@pytest.mark.parametrize("kind", mostly_long(K.KINDS.values(), K.RELU_SOFTMAX))
def test_every_kind(kind):
    """One by one, which says whose mistake it is; the mixed network below has them all."""
    check(one_layer(kind), tolerance_of(kind))


@pytest.mark.parametrize("form", mostly_long(MlpForm))
def test_every_mlp_form(form):
    """One by one as well; the mixed network has them all."""
    check(one_layer(mlp=form), FXP18)


@pytest.mark.parametrize("activation", Activation)
def test_every_activation(activation):
    tolerance = FXP18_EXP if activation is Activation.GELU_TANH else FXP18
    check(one_layer(mlp=MlpForm.ACTIVATED), tolerance, activation=activation)


def test_kinds_and_forms_mixed_over_heads_rows_and_tokens():
    tokens = FEW_TOKENS.tokens
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(tokens))
    layer = LayerArchitecture(heads=tuple(rows_of_every_kind(tokens)), mlp=forms)
    check(Architecture(layers=(layer,)), FXP18_EXP, image_size=FEW_TOKENS.image_size)


def test_pre_norm_mean_pooling_and_biases():
    check(one_layer(), FXP18, block=BlockForm.PRE, pooling=Pooling.MEAN, qkv_bias=True)


def test_extra_tokens_a_norm_after_the_embedding_and_a_head_of_two_parts():
    ends = {"pooling": Pooling.CLASS_MEAN, "extra_tokens": 2, "embed_norm": True}
    check(one_layer(), FXP18, block=BlockForm.PRE, **ends)


@pytest.mark.parametrize(
    ("kind", "mlp"),
    [
        (K.RELU_SOFTMAX, MlpForm.FUSED),
        pytest.param(K.SOFTMAX, MlpForm.FUSED, marks=pytest.mark.long),
        pytest.param(K.SCALING, MlpForm.ACTIVATED, marks=pytest.mark.long),  # with GeLU
    ],
)
def test_cheetah(kind, mlp):
    check(one_layer(kind, mlp), tolerance_of(kind), profiles=["cheetah"])


def test_tolerance_has_teeth():
    config = small_config(depth=1)
    checkpoint = small_checkpoint(config, one_layer())
    pixels = random_pixels(config, 2)
    plain = Classifier(checkpoint)
    logits = plain(plain.preprocess(list(pixels)))
    with pytest.raises(AssertionError):
        assert_close(1.01 * logits, logits, FXP18_EXP)


def test_a_rest_of_images_and_a_128_bit_ring():
    from mpcvit.artifacts.profile import Profile
    from mpcvit.artifacts.protocols import PROTOCOLS, Dealer

    profile = Profile(
        protocol=PROTOCOLS["SEMI2K"], dealer=Dealer.FIRST_PARTY_INSECURE, ring_bits=128
    )
    config = small_config(depth=1)
    checkpoint = small_checkpoint(config, one_layer())
    pixels = random_pixels(config, 3)
    result = mpcvit.run(checkpoint, pixels, profile, batch_size=2, reveal="logits", simulate=True)
    assert [batch.images for batch in result.record.batches] == [2, 1]
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels))), FXP18)
    expected = [checkpoint.classes[index] for index in result.logits.argmax(axis=1)]
    assert list(result.predictions) == expected

"""Lowered programs in the simulator: the emulation's logits, at pinned costs."""

import numpy as np
import pytest

import mpcvit
from mpcvit.arch import Architecture, AttentionKind, LayerArchitecture, MlpForm
from mpcvit.config import BlockForm
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import assert_close

K = AttentionKind
FXP26 = 1e-4
"""Fixed point with 26 fraction bits against float32: a series' rounding, and float32's own."""


def lowered(architecture, profile="semi2k", **changes):
    config = small_config(depth=len(architecture.layers), mlp_ratio=1.2, **changes)
    checkpoint = small_checkpoint(config, architecture)
    return mpcvit.lower(checkpoint, list(random_pixels(config, 64)), profile)


def run(program, count=1, profile="semi2k", batch_size=1):
    pixels = random_pixels(program.model, count)
    result = mpcvit.run(program, pixels, profile, batch_size=batch_size, simulate=True)
    return result, program(program.preprocess(list(pixels)))


def stages(record, batch):
    return {stage.name: stage for stage in record.batches[batch].stages}


@pytest.mark.parametrize("block", BlockForm)
def test_private_and_emulated_logits_agree(block):
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(10))
    mixed = Architecture(
        layers=(
            LayerArchitecture(heads=(K.RELU_SOFTMAX, K.SCALING, K.SQUARE), mlp=forms),
            LayerArchitecture(heads=(K.QUAD2, K.RELU, K.RELU_SOFTMAX)),
        )
    )
    result, expected = run(lowered(mixed, block=block), count=3, batch_size=2)
    assert_close(result.logits, expected, FXP26)


@pytest.fixture(scope="module")
def relu_softmax():
    program = lowered(Architecture.uniform(K.RELU_SOFTMAX, depth=2, heads=3))
    result, expected = run(program, count=2)
    assert_close(result.logits, expected, FXP26)
    return program, result.record


def test_through_a_dealer(relu_softmax):
    """Where no mask is reused, as SPU would give it away."""
    program, record = relu_softmax
    result, expected = run(program, profile="semi2k-dealer")
    assert_close(result.logits, expected, FXP26)
    assert (record.profile["reuse_weight_masks"], result.record.profile["reuse_weight_masks"]) == (
        True,
        False,
    )


def test_exchanges_are_what_the_plan_says(relu_softmax):
    program, record = relu_softmax
    for index, layer in enumerate(program.plan.layers):
        stand_ins = [own.exchanges for own in vars(layer).values()]
        # squares and products of both norms, six products of matrices, a ReLU, a division
        expected = sum(stand_ins) + 4 + 6 + 9 + 1
        assert stages(record, 0)[f"block {index}"].exchanges == expected
    assert stages(record, 0)["embedding"].exchanges == 1
    assert stages(record, 0)["head"].exchanges == program.plan.norm.exchanges + 3


def test_masks_are_reused_from_the_second_image_on(relu_softmax):
    program, record = relu_softmax
    kernels = program.parameters["blocks_0"]
    size = sum(
        kernel.size
        for kernel in (
            kernels["qkv"]["kernel"],
            kernels["proj"]["kernel"],
            kernels["mlp"]["up"]["kernel"],
            kernels["mlp"]["down"]["kernel"],
        )
    )
    first, second = (stages(record, batch)["block 0"] for batch in (0, 1))
    assert first.sent_bytes - second.sent_bytes == 16 * size
    assert first.exchanges == second.exchanges


def test_scaling_heads_ride_along():
    """A layer with one ReLU-softmax head costs the exchanges of one that has no others."""
    both = LayerArchitecture(heads=(K.SCALING, K.RELU_SOFTMAX, K.SCALING), mlp=MlpForm.FUSED)
    program = lowered(Architecture(layers=(both,)))
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    (layer,) = program.plan.layers
    stand_ins = [own.exchanges for own in vars(layer).values() if own is not None]
    block = stages(result.record, 0)["block 0"]
    assert block.exchanges == sum(stand_ins) + 4 + 5 + 9 + 1


def test_all_scaling_takes_two_products():
    program = lowered(Architecture.uniform(K.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED))
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    (layer,) = program.plan.layers
    block = stages(result.record, 0)["block 0"]
    assert block.exchanges == layer.norm1.exchanges + layer.norm2.exchanges + 4 + 5


def test_the_same_program_under_another_protocol():
    architecture = Architecture.uniform(K.RELU_SOFTMAX, depth=1, heads=3, mlp=MlpForm.FUSED)
    program = lowered(architecture, profile="aby3")
    result, expected = run(program, profile="aby3")
    assert_close(result.logits, expected, 2e-3)
    assert np.isfinite(result.logits).all()

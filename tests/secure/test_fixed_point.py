"""Numbers that fixed point cannot hold are handled, not hidden."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.classifier import Classifier
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.secure.overflow import find_overflows
from mpcvit.secure.spu.stages import cut, fit_fixed_point
from tests.models import random_images, random_pixels, small_checkpoint, small_config
from tests.tolerances import F32, FXP18, assert_close

PROFILE = load_profile("semi2k")


def network(kind=table.RELU_SOFTMAX, depth=1, **changes):
    config = small_config(depth=depth, **changes)
    architecture = Architecture.uniform(kind, depth=depth, heads=3, mlp=MlpForm.LINEAR)
    return small_checkpoint(config, architecture)


def test_an_eps_below_the_resolution_is_raised_and_said():
    checkpoint = network(attention_eps=1e-8)
    config, notes = fit_fixed_point(checkpoint.model, checkpoint.architecture, PROFILE)
    assert config.attention_eps == 2**-18
    assert config.norm_eps == 1e-5
    assert notes == (
        "model.attention_eps raised from 1e-08 to 3.81e-06, the smallest number of 18 "
        "fraction bits",
    )


def test_an_eps_that_no_head_uses_is_left_alone():
    checkpoint = network(table.SCALING, attention_eps=1e-8)
    config, notes = fit_fixed_point(checkpoint.model, checkpoint.architecture, PROFILE)
    assert config == checkpoint.model
    assert notes == ()


def test_a_row_without_positive_scores_stays_zero():
    """Its denominator is eps alone; encoded to zero it would be a division by zero."""
    checkpoint = network(attention_eps=1e-8, qkv_bias=True)
    parameters = jax.tree.map(np.copy, checkpoint.parameters)
    width = checkpoint.model.width
    # keys that are minus the queries: every score is negative
    for tensor in parameters["blocks_0"]["attention"]["qkv"].values():
        tensor[..., : 2 * width] = 0.0
    bias = parameters["blocks_0"]["attention"]["qkv"]["bias"]
    bias[:width], bias[width : 2 * width] = 1.0, -1.0
    checkpoint = replace(checkpoint, parameters=parameters)
    pixels = random_pixels(checkpoint.model, 1)
    result = mpcvit.run(checkpoint, pixels, PROFILE, reveal="logits", simulate=True)
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels))), FXP18)
    assert any("attention_eps raised" in note for note in result.record.notes)


def test_stages_compose_to_the_network():
    checkpoint = network(depth=2)
    images = x = random_images(checkpoint.model, 2)
    for stage in cut(checkpoint.model, checkpoint.architecture):
        x = jax.jit(stage.function)(stage.parameters(checkpoint.parameters), x)
    assert_close(x, Classifier(checkpoint)(images), F32)


def test_ranges_name_the_stage():
    checkpoint = network(depth=2)
    images = np.asarray(random_images(checkpoint.model, 2))
    assert find_overflows(checkpoint, images, PROFILE) == ()
    parameters = jax.tree.map(np.copy, checkpoint.parameters)
    parameters["blocks_1"]["mlp"]["up"]["kernel"] *= 1e8
    (overflow, *_) = find_overflows(replace(checkpoint, parameters=parameters), images, PROFILE)
    assert overflow.stage == "block 1"
    assert overflow.operation == "dot_general"
    assert "beyond the 6.71e+07" in str(overflow)


def test_a_simulated_run_notes_what_leaves_the_range():
    checkpoint = network()
    parameters = jax.tree.map(np.copy, checkpoint.parameters)
    for name in ("up", "down"):
        parameters["blocks_0"]["mlp"][name]["kernel"] *= 1e5
    checkpoint = replace(checkpoint, parameters=parameters)
    pixels = random_pixels(checkpoint.model, 1)
    result = mpcvit.run(
        checkpoint, pixels, PROFILE, reveal="logits", simulate=True, check_range=True
    )
    notes = result.record.notes
    assert any(note.startswith("block 0: ") and "beyond the" in note for note in notes)
    with pytest.raises(UserError, match="check_range needs simulate"):
        mpcvit.run(checkpoint, pixels, PROFILE, check_range=True, insecure=True)


@pytest.mark.parametrize("value", [1e9, np.nan, np.inf])
def test_a_weight_out_of_range_is_refused(value):
    checkpoint = network()
    parameters = jax.tree.map(np.copy, checkpoint.parameters)
    parameters["head"]["bias"][3] = value
    checkpoint = replace(checkpoint, parameters=parameters)
    with pytest.raises(UserError, match=r"'head\.bias' reaches"):
        mpcvit.run(
            checkpoint, random_pixels(checkpoint.model, 1), PROFILE, reveal="logits", simulate=True
        )

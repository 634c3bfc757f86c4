"""Networks whose values run away are refused by the block that does, and how clips cure them."""

import re

import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.forms import Activation, NormForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.kinds.table import SCALING
from mpcvit.lowering.calibrate import (
    engine_that_holds,
    largest_safe,
    odd_pictures,
    relative_error,
    stage_values,
)
from mpcvit.lowering.jaxpr_walk import RecordedValue
from mpcvit.lowering.lower import lower
from tests.models import random_pixels, small_checkpoint, small_config, tame


def polynomial(grown=1.0, block=1, **changes):
    """Return a network of sums, products and squares, in which one block multiplies outliers."""
    config = small_config(depth=3, norm=NormForm.BATCH, activation=Activation.QUADRATIC, **changes)
    checkpoint = small_checkpoint(
        config, Architecture.uniform(SCALING, depth=3, heads=config.heads)
    )
    tame(checkpoint.parameters)
    checkpoint.parameters[f"blocks_{block}"]["mlp"]["up"]["kernel"] *= grown
    return checkpoint


@pytest.mark.parametrize("block", [0, 2])
def test_the_block_that_runs_away_is_named(block):
    images = random_pixels(small_config(), 4)
    with pytest.raises(UserError, match=f"block {block} runs away: for the picture") as refused:
        lower(polynomial(1e7, block), images, "semi2k-dealer-wan")
    assert "model.layer_norms" in str(refused.value)
    assert "model.clip = 8" in str(refused.value)
    assert "augment.odd = 0.02, train.outlier_weight = 1" in str(refused.value)


def test_a_value_that_is_no_number_runs_away():
    """The picture is the first whose values do."""
    settings = load_profile("semi2k-dealer-wan")

    def values_of(images):
        largest = float("nan") if images.max() > 1 else 1.0
        return {"block 3": [RecordedValue(operation="mul", largest=largest, size=10)]}

    pictures = {"flat": np.ones((2, 2, 3)), "odd": np.full((2, 2, 3), 2.0)}
    engine = choose_engine(settings)
    with pytest.raises(UserError, match=r"block 3 runs away: for the picture 'odd'.*reaches nan"):
        engine_that_holds(values_of, pictures, engine, settings)
    assert engine_that_holds(values_of, {"flat": pictures["flat"]}, engine, settings) == engine


@pytest.mark.parametrize("profile", ["semi2k-dealer-wan", "semi2k"])
def test_large_values_leave_fewer_fraction_bits(profile):
    """Each bit less leaves room for values four times as large, down to 22 bits."""
    settings = load_profile(profile)
    engine = choose_engine(settings)

    def held(largest):
        values = {"block 0": [RecordedValue(operation="mul", largest=largest, size=1 << 20)]}
        pictures = {"flat": np.ones((2, 2, 3))}
        return engine_that_holds(lambda images: values, pictures, engine, settings)

    limit = largest_safe(engine, products=1 << 20)
    for bits in range(engine.fraction_bits, 21, -1):
        assert held(0.99 * limit).fraction_bits == bits
        limit *= 4
    with pytest.raises(UserError, match=re.escape(f"the engine holds {limit / 4:.3g}")):
        held(0.99 * limit)


def test_a_program_of_fewer_fraction_bits_computes_the_same():
    checkpoint = polynomial(grown=20.0)
    config, images = checkpoint.model, random_pixels(checkpoint.model, 16)
    program = lower(checkpoint, images, "semi2k-dealer-wan")
    assert 22 <= program.engine.fraction_bits < 26
    inputs = make_inputs(list(images), config, checkpoint.data).images
    assert relative_error(program.in_fixed_point(inputs), program.judge(inputs).logits) < 1e-3


def test_no_odd_picture_leaves_the_ring():
    """Not even negatives and flat ones, in fixed point; and the clip of a network is lowered."""
    checkpoint = polynomial(clip=3.0)
    config, images = checkpoint.model, random_pixels(checkpoint.model, 4)
    program = lower(checkpoint, images, "semi2k-dealer-wan")
    pictures = [*odd_pictures(config.image_size, config.channels).values(), *(255 - images)]
    inputs = make_inputs(pictures, config, checkpoint.data).images
    values = stage_values(config, program.architecture, program.plan, program.parameters, inputs)
    limit = program.engine.apply(load_profile("semi2k-dealer-wan")).magnitude_limit
    assert max(value.largest for stage in values.values() for value in stage) < limit
    rounded = program.in_fixed_point(inputs)
    np.testing.assert_allclose(rounded, program.judge(inputs).logits, atol=1e-3)
    assert {"gain", "bias"} == set(program.parameters["blocks_1"]["norm1"])

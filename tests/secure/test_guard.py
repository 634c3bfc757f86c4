"""The guard in private runs: what left its interval gets no answer, and the rest gets the class."""

from dataclasses import replace

import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.profile import load_profile
from mpcvit.kinds import table
from mpcvit.lowering import Guard
from mpcvit.lowering.lower import lower
from mpcvit.lowering.out_of_range import Trust
from mpcvit.lowering.sites import HEAD_NORM
from mpcvit.make_program import with_guard
from mpcvit.secure.answers import RefusedError
from tests.marks import mostly_long
from tests.models import random_pixels, small_checkpoint, small_config


def lowered_for(profile):
    config = small_config(depth=1)
    architecture = Architecture.uniform(table.RELU_SOFTMAX, depth=1, heads=3)
    checkpoint = small_checkpoint(config, architecture)
    images = list(random_pixels(config, 64) // 4 + 96)  # of little contrast, unlike what comes
    return lower(checkpoint, images, profile, error_budget=1.0)


@pytest.fixture(scope="module")
def program():
    return lowered_for("semi2k")


def narrowed(program):
    """A program whose last norm knows so small an interval that pictures leave it."""
    norm = program.plan[HEAD_NORM]
    return program.changed(plan={**program.plan, HEAD_NORM: replace(norm, high=norm.low + 1e-3)})


@pytest.mark.parametrize("reveal", ["class", "logits"])
def test_what_left_an_interval_gets_no_answer(program, reveal):
    pixels = random_pixels(program.model, 2)
    found = mpcvit.run(
        narrowed(program), pixels, "semi2k", batch_size=2, reveal=reveal, simulate=True
    )
    assert found.refused == (0, 1)
    assert found.likeliest == ((), ())
    with pytest.raises(RefusedError, match="no answer for image 0, image 1"):
        _ = found.predictions


@pytest.mark.parametrize("profile", mostly_long(["cheetah", "aby3"], "aby3"))
def test_other_protocols_refuse_it_too(profile):
    """One picture leaves an interval; the other stays inside, and keeps its answer."""
    program = lowered_for(profile)
    inside = random_pixels(program.model, 1) // 4 + 96
    pixels = np.concatenate(
        [inside, 255 * (random_pixels(program.model, 1) > 127).astype(np.uint8)]
    )
    judged = program.judge(program.preprocess(pixels))
    assert judged.trusted.tolist() == [True, False]
    found = mpcvit.run(program, pixels, profile, batch_size=2, simulate=True)
    assert found.refused == (1,)
    assert found.likeliest[0] == (program.classes[judged.logits[0].argmax()],)


def test_without_a_guard_it_is_wrong_without_a_word(program):
    """What the guard is for: the same program says a class, whatever it is worth."""
    naive = narrowed(program)
    naive = naive.changed(trust=Trust())
    pixels = random_pixels(program.model, 1)
    assert mpcvit.run(naive, pixels, "semi2k", simulate=True).refused == ()


def test_the_rest_gets_the_class_of_the_emulation(program):
    pixels = random_pixels(program.model, 3) // 4 + 96
    judged = program.judge(program.preprocess(pixels))
    found = mpcvit.run(program, pixels, "semi2k", batch_size=3, simulate=True)
    assert found.refused == tuple(np.flatnonzero(~judged.trusted))
    assert judged.trusted.any()
    for index in np.flatnonzero(judged.trusted):
        assert found.likeliest[index] == (program.classes[judged.logits[index].argmax()],)


def test_a_guard_rides_along_with_the_class(program):
    guarded, cost = with_guard(program, load_profile("semi2k"), Guard.ON)
    assert guarded.public.trust.guard
    assert cost.guarded.exchanges == cost.without.exchanges
    # norms of 10, 1 and 1 tokens and 3 rows' sums from two sides, and 33 activations; each takes
    # a comparison of 104 bytes, and 32 to be multiplied with noise
    sides = 2 * (10 + 1 + 1 + 3)
    assert program.public.trust.assured == ("block 0 activation",)  # which no picture leaves
    assert cost.guarded.sent_bytes - cost.without.sent_bytes == 136 * sides
    unassured = program.changed(trust=replace(program.public.trust, assured=()))
    _, cost = with_guard(unassured, load_profile("semi2k"), Guard.ON)
    assert cost.guarded.sent_bytes - cost.without.sent_bytes == 136 * (sides + 33)
    off, _ = with_guard(program, load_profile("semi2k"), Guard.OFF)
    assert not off.public.trust.guard

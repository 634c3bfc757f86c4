"""What opens beside a class in private runs, bit for bit in the ring."""

from dataclasses import replace

import numpy as np
import pytest
from spu import libspu

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.artifacts.record import Reveal
from mpcvit.lowering.out_of_range import Trust
from mpcvit.secure.card import Opening
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.compile import compile_function
from mpcvit.secure.spu.engine import Engine, one_at_a_time, profile_log, run_in_threads
from mpcvit.secure.spu.shares import _content_of

SEMI2K = load_profile("semi2k")
WIDE = replace(SEMI2K, ring_bits=128, fraction_bits=26, truncation=Truncation.LOCAL)
VALUES = np.array([[1, 3, 3, 0, -2], [2**25, -(2**25), 0, 1, 2**25], [0] * 5], np.float32)


def numbers_of(share, shape, bits):
    """The elements of the ring that a share holds, as whole numbers."""
    words = np.frombuffer(_content_of(share), "<u8").astype(object).reshape(-1, bits // 64)
    return (words * [1, 2**64][: bits // 64]).sum(axis=1).reshape(shape)


def beaten_by(row):
    """For each value and each other one whether that is larger, or equal and first."""
    places = range(len(row))
    return [
        [row[other] > row[own] or (row[other] == row[own] and other < own)]
        for own in places
        for other in places
        if other != own
    ]


@pytest.mark.parametrize(
    "profile", [SEMI2K, WIDE, load_profile("cheetah")], ids=["64", "128", "cheetah"]
)
def test_what_opens_is_the_sum_of_the_noise(profile):
    """No product has cut it, no sum has overflowed into something else: so it stays uniform."""
    opening = Opening(reveal=Reveal.CLASS, classes=5, trust=Trust(), masked=True)
    shape = (len(VALUES), opening.count_noise(VALUES))
    profile_log()
    executable = libspu.Executable(
        name="reveal",
        input_names=["values", "noise"],
        output_names=["opened"],
        code=compile_function(opening, VALUES, np.zeros(shape, np.float32)),
    )

    def take_part(channel):
        engine = Engine(channel, profile)
        if channel.role is Role.DATA_OWNER:
            shares, _ = engine.sharing.give({"values": VALUES})
        else:
            shares, _ = engine.sharing.take(Role.DATA_OWNER, {"values": VALUES.shape})
        noise = engine.sharing.make_noise(shape)
        engine.runtime.set_var("values", shares["values"])
        engine.runtime.set_var("noise", noise)
        engine.run(executable, "reveal")
        opened = engine.runtime.get_var("opened")
        bits = profile.ring_bits
        return numbers_of(noise, shape, bits), numbers_of(opened, VALUES.shape, bits)

    with one_at_a_time:
        parts = run_in_threads(profile, take_part).values()
    noise, opened = (sum(each) % 2**profile.ring_bits for each in zip(*parts, strict=True))
    selected = noise * [np.ravel(beaten_by(row)) for row in VALUES]
    expected = selected.reshape(*VALUES.shape, -1).sum(axis=2) % 2**profile.ring_bits
    assert (opened == expected).all()
    assert (opened == 0).sum(axis=1).tolist() == [1, 1, 1]

import numpy as np
import pytest

from mpcvit.data.batches import Purpose, Streams

DRAWS = 20_000
SIX_SIGMA = 6 / np.sqrt(12 * DRAWS)  # of the mean of uniform draws; one run in 10**9 fails


def first_draw(seed=1, purpose=Purpose.IMAGE, epoch=2, index=3) -> float:
    return Streams(seed=seed, purpose=purpose).at(epoch=epoch, index=index).random()


@pytest.mark.parametrize(
    "other", [{"seed": 2}, {"purpose": Purpose.PAIR}, {"epoch": 3}, {"index": 2}]
)
def test_each_part_matters(other):
    assert first_draw(**other) != first_draw()


def test_epoch_and_index_do_not_swap():
    assert first_draw(epoch=2, index=3) != first_draw(epoch=3, index=2)


def test_a_stream_forgets_what_was_drawn_before():
    streams = Streams(seed=1, purpose=Purpose.IMAGE)
    expected = streams.at(epoch=0, index=7).standard_normal(5)
    # an odd number of 32-bit draws leaves half a word behind
    streams.at(epoch=0, index=8).standard_normal(3, np.float32)
    streams.at(epoch=0, index=8).integers(0, 10, dtype=np.int32)
    np.testing.assert_array_equal(streams.at(epoch=0, index=7).standard_normal(5), expected)


def test_a_long_stream_does_not_run_into_its_neighbours():
    streams = Streams(seed=1, purpose=Purpose.IMAGE)
    drawn = {
        (epoch, index): streams.at(epoch=epoch, index=index).random(1000).tolist()
        for epoch in range(3)
        for index in range(3)
    }
    assert len({value for values in drawn.values() for value in values}) == 9 * 1000


def test_neighbouring_streams_are_uniform_and_uncorrelated():
    streams = Streams(seed=1, purpose=Purpose.IMAGE)
    draws = np.array([streams.at(epoch=0, index=index).random() for index in range(DRAWS)])
    assert len(np.unique(draws)) == DRAWS
    assert abs(draws.mean() - 0.5) < SIX_SIGMA
    correlation = np.corrcoef(draws[:-1], draws[1:])[0, 1]
    assert abs(correlation) < 6 / np.sqrt(DRAWS)


def test_seeds_beyond_64_bits_are_taken():
    assert first_draw(seed=2**64 + 1) == first_draw(seed=1)

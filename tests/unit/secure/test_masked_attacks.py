"""Attackers on the numbers that open beside a class: they win against cheaper noise, not ours.

The ring is that of 32 bits, in which JAX computes here as SPU does in its own. An attacker
sees what opens for one image, asked for often, and knows the formula.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.secure.spu.best import count_noise, mask_best

TRIES = 400
PICTURES = {
    "far apart": [900_000.0, -3.0, 20_000.0, -700_000.0, 0.0, 5.0],
    "close": [1.0, 1.0001, 0.9999, 1.00005, 0.99995, 1.0002],
    "tied": [2.0, 2.0, 1.0, 1.0, 1.0, 0.0],
    "all tied": [0.0] * 6,
    "two": [3.0, -1.0],
}


def losses_of(row):
    """By how many others each value is beaten; of equal ones the first wins."""
    order = np.argsort(-np.asarray(row), kind="stable")
    losses = np.empty(len(row), int)
    losses[order] = np.arange(len(row))
    return losses


def uniform(rng, *shape):
    return rng.integers(0, 2**32, shape, dtype=np.uint32)


def open_ours(row, rng, groups):
    """All tries at once, as a batch: every image has numbers of its own."""
    values = jnp.asarray(np.tile(np.float32(row), (TRIES, 1)))
    noise = jnp.asarray(uniform(rng, TRIES, count_noise(values, groups=groups)))
    found = mask_best(values, noise, groups=groups)
    return np.asarray(found.chosen)


def open_products(row, rng, _):
    """A number for each class, times its losses: half as many selections."""
    return losses_of(row).astype(np.uint32) * uniform(rng, TRIES, len(row))


def open_small(row, rng, _):
    """A number for each loss, but small enough for fixed point to hold the sum."""
    bits = np.arange(len(row)) < losses_of(row)[:, None]
    return (rng.integers(0, 2**20, (TRIES, *bits.shape)) * bits).sum(axis=2).astype(np.uint32)


def open_truncated(row, rng, _):
    """A product in fixed point, which shifts each number by the fraction bits."""
    bits = np.arange(len(row)) < losses_of(row)[:, None]
    numbers = uniform(rng, TRIES, *bits.shape).view(np.int32) >> 8
    return (numbers * bits).sum(axis=2, dtype=np.int32).view(np.uint32)


def divisors(opened):
    """How often the losses can be halved, as every try shows: 0 for odd ones."""
    together = map(int, np.bitwise_or.reduce(opened, axis=0))
    return [(number & -number).bit_length() - 1 if number else 0 for number in together]


def sizes(opened):
    """How large the numbers of each class are, as signed ones."""
    return np.sqrt((opened.view(np.int32).astype(float) ** 2).mean(axis=0))


@pytest.mark.parametrize("picture", ["far apart", "close"])
def test_cheaper_noise_gives_the_order_away(picture):
    rng, row = np.random.default_rng(0), PICTURES[picture]
    losses = losses_of(row)
    # 0 1 2 3 4 5 losses are 0 and 2^0 2^1 2^0 2^2 2^0 times an odd number
    assert divisors(open_products(row, rng, 1)) == [[0, 0, 1, 0, 2, 0][loss] for loss in losses]
    for naive in (open_small, open_truncated):
        assert sizes(naive(row, rng, 1)).argsort().tolist() == losses.argsort().tolist()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("picture", PICTURES)
def test_the_same_attackers_learn_nothing_of_ours(picture, groups):
    rng, row = np.random.default_rng(1), PICTURES[picture]
    groups = min(groups, len(row) // 2)
    opened, losses = open_ours(row, rng, groups), losses_of(row)
    assert ((opened == 0) == (losses == 0)).all()  # the class, in every try
    others = opened[:, losses > 0]
    assert divisors(others) == [0] * (len(row) - 1)
    spread = sizes(others) / (2**32 / np.sqrt(12))  # of uniform numbers
    np.testing.assert_allclose(spread, 1, atol=0.15)
    for bit in range(32):  # each is as often set as not, in five standard deviations
        assert (abs((others >> bit & 1).mean(axis=0) - 0.5) < 2.5 / np.sqrt(TRIES)).all()


def test_numbers_that_serve_two_images_show_where_their_orders_differ():
    rng = np.random.default_rng(2)
    rows = np.float32([[5, 4, 3, 2], [5, 3, 4, 2]])  # only the second and third change places
    used, fresh = uniform(rng, 1, 4 * 3), uniform(rng, 2, 4 * 3)

    def open_two(noise):
        found = mask_best(jnp.asarray(rows), jnp.asarray(noise)).chosen
        return (np.diff(np.asarray(found), axis=0) == 0)[0].tolist()

    assert open_two(np.tile(used, (2, 1))) == [True, False, False, True]
    assert open_two(fresh) == [True, False, False, False]  # the class alone is the same


def test_who_knows_the_numbers_knows_the_order():
    """So each party draws a share of them: an attacker's own share is no help."""
    rng, row = np.random.default_rng(3), PICTURES["far apart"]
    own, theirs = uniform(rng, 1, 30), uniform(rng, 1, 30)

    def losses_that_fit(noise, place=1):
        """Try every subset of the own numbers of one class."""
        opened = mask_best(jnp.asarray(np.float32([row])), jnp.asarray(noise)).chosen
        subsets = np.arange(2**5)[:, None] >> np.arange(5) & 1
        sums = (subsets * own.reshape(6, 5)[place]).sum(axis=1).astype(np.uint32)
        return set(subsets.sum(axis=1)[sums == np.asarray(opened)[0, place]].tolist())

    assert losses_that_fit(own) == {losses_of(row)[1]}
    assert losses_that_fit(own + theirs) == set()

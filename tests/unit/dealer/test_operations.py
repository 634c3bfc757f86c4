"""Every kind in every ring: what both parties hold then fits together, in Python's integers."""

import numpy as np
import pytest

from mpcvit.dealer.generator import draw
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.script import Kind, Step

SEEDS = (bytes(range(16)), bytes(range(100, 116)))
START, N, SHIFT = 1000, 7, 5


def numbers(content, width):
    return [int.from_bytes(content[i : i + width], "little") for i in range(0, len(content), width)]


def operands(step):
    """By operand, then by party: what each draws."""
    return [
        [numbers(draw(seed, count, length), step.width) for seed in SEEDS]
        for count, length in zip(step.counts(START), step.operand_bytes, strict=True)
    ]


def joined(parts, modulus=None):
    if modulus is None:
        return [a ^ b for a, b in zip(*parts, strict=True)]
    return [(a + b) % modulus for a, b in zip(*parts, strict=True)]


def product(a, b, shape, modulus):
    m, n, k = shape
    return [
        sum(a[i * k + x] * b[x * n + j] for x in range(k)) % modulus
        for i in range(m)
        for j in range(n)
    ]


def relation(step, parts, modulus):
    """What the last operands must become."""
    bits = 8 * step.width
    a = joined(parts[0], modulus)
    match step.kind:
        case Kind.MUL:
            return [x * y % modulus for x, y in zip(a, joined(parts[1], modulus), strict=True)]
        case Kind.MUL_PRIVATE:
            return [x * y % modulus for x, y in zip(*parts[0], strict=True)]
        case Kind.SQUARE:
            return [x * x % modulus for x in a]
        case Kind.DOT:
            return product(a, joined(parts[1], modulus), step.shape, modulus)
        case Kind.TRUNCATE:
            return [((x - modulus if x >> (bits - 1) else x) >> SHIFT) % modulus for x in a]
        case Kind.TRUNCATE_PROBABLY:
            return [x % (modulus >> 1) >> SHIFT for x in a] + [x >> (bits - 1) for x in a]
    raise AssertionError(step.kind)


RINGS = (4, 8, 16)
SUMMED = (
    *(Kind.MUL, Kind.MUL_PRIVATE, Kind.SQUARE, Kind.DOT),
    *(Kind.TRUNCATE, Kind.TRUNCATE_PROBABLY),
)


@pytest.mark.parametrize("width", RINGS)
@pytest.mark.parametrize("kind", SUMMED)
def test_sums(kind, width):
    shape = (3, 5, 7) if kind is Kind.DOT else (N,)
    step = Step(kind=kind, width=width, shape=shape, shift=SHIFT if kind.shifts else 0)
    modulus, parts = 1 << 8 * width, operands(step)
    corrections = numbers(adjust(step, SEEDS, step.counts(START)), width)
    last = parts[1:] if kind is Kind.TRUNCATE_PROBABLY else parts[-1:]
    drawn = [number for one in last for number in joined(one, modulus)]
    found = [(x + y) % modulus for x, y in zip(drawn, corrections, strict=True)]
    assert found == relation(step, parts, modulus)


def test_and():
    step = Step(kind=Kind.AND, width=16, shape=(N,))
    a, b, c = (joined(parts) for parts in operands(step))
    corrections = numbers(adjust(step, SEEDS, step.counts(START)), 16)
    assert [x ^ y for x, y in zip(c, corrections, strict=True)] == [
        x & y for x, y in zip(a, b, strict=True)
    ]


@pytest.mark.parametrize("width", RINGS)
def test_equal_zero(width):
    step = Step(kind=Kind.EQUAL_ZERO, width=width, shape=(N,))
    a, b = operands(step)
    corrections = numbers(adjust(step, SEEDS, step.counts(START)), width)
    found = [x ^ y for x, y in zip(joined(b), corrections, strict=True)]
    assert found == joined(a, 1 << 8 * width)


@pytest.mark.parametrize("width", RINGS)
def test_random_bits(width):
    step = Step(kind=Kind.RANDOM_BIT, width=width, shape=(997,))
    (a,) = operands(step)
    modulus = 1 << 8 * width
    corrections = numbers(adjust(step, SEEDS, step.counts(START)), width)
    bits = [(x + y) % modulus for x, y in zip(joined(a, modulus), corrections, strict=True)]
    assert set(bits) == {0, 1}
    assert 400 < sum(bits) < 600
    assert adjust(step, SEEDS, step.counts(START)) == adjust(step, SEEDS, step.counts(START))
    assert adjust(step, (SEEDS[0], bytes(16)), step.counts(START)) != adjust(
        step, SEEDS, step.counts(START)
    )


def test_a_wide_product_is_exact():
    """The largest limbs, summed over the longest rows that are allowed in one float64."""
    ring_sum = 4096
    step = Step(kind=Kind.DOT, width=16, shape=(1, 1, ring_sum))
    from mpcvit.dealer.ring import ring_of

    largest = np.full((ring_sum, 2), 2**64 - 1, "<u8")
    found = ring_of(16).matmul(largest, largest, step.shape)
    assert numbers(found.tobytes(), 16) == [ring_sum * (2**128 - 1) ** 2 % 2**128]

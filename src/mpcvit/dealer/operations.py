"""What the dealer computes: from both parties' random arrays to what one of them adds.

Each party draws its own arrays from its own seed. Their sum (or exclusive or)
is what neither knows: a, b, c. One party then adds a correction to its c, so
that the arrays fit each other, as in a b = c. The correction is all that the
dealer gives away; without the other's c it is a random number.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np

from mpcvit.dealer.generator import draw, draw_bits
from mpcvit.dealer.ring import Ring, ring_of
from mpcvit.dealer.script import Kind, Step

Seeds = tuple[bytes, ...]
_Pieces = list[list[np.ndarray]]  # by operand, then by party


def adjust(step: Step, seeds: Seeds, counts: Sequence[int]) -> bytes:
    """Return what the adjusting party gets for a step whose operands begin at `counts`."""
    ring = ring_of(step.width)
    pieces = [
        [ring.read(draw(seed, count, length)) for seed in seeds]
        for count, length in zip(counts, step.operand_bytes, strict=True)
    ]
    with np.errstate(over="ignore"):
        if step.kind is Kind.RANDOM_BIT:
            bits = draw_bits(seeds, counts[0], step.shape[0])
            buffers = [ring.subtract(ring.embed(bits), _sum(ring, pieces[0]))]
        else:
            buffers = _CORRECTIONS[step.kind](ring, pieces, step)
    return b"".join(np.ascontiguousarray(buffer).tobytes() for buffer in buffers)


def _sum(ring: Ring, parts: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(ring.add, parts)


def _exclusive_or(parts: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(np.bitwise_xor, parts)


def _mul(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return a b - c."""
    a, b, c = (_sum(ring, parts) for parts in pieces)
    return [ring.subtract(ring.multiply(a, b), c)]


def _mul_private(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return a b - c, where one party drew a and the other b."""
    factors, c = pieces
    return [ring.subtract(reduce(ring.multiply, factors), _sum(ring, c))]


def _square(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return a a - b."""
    a, b = (_sum(ring, parts) for parts in pieces)
    return [ring.subtract(ring.multiply(a, a), b)]


def _dot(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return A B - C, as matrices."""
    a, b, c = (_sum(ring, parts) for parts in pieces)
    m, n, k = step.shape
    return [ring.subtract(ring.matmul(a, b, (m, n, k)), c)]


def _and(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return (a and b) xor c."""
    a, b, c = map(_exclusive_or, pieces)
    return [(a & b) ^ c]


def _truncate(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return (a >> shift) - b, with a's sign."""
    a, b = (_sum(ring, parts) for parts in pieces)
    return [ring.subtract(ring.shift_right_signed(a, step.shift), b)]


def _truncate_probably(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return (a without its highest bit >> shift) - b, and the highest bit - c."""
    a, b, c = (_sum(ring, parts) for parts in pieces)
    rest = ring.shift_right(ring.shift_left(a, 1), step.shift + 1)
    highest = ring.shift_right(a, 8 * step.width - 1)
    return [ring.subtract(rest, b), ring.subtract(highest, c)]


def _equal_zero(ring: Ring, pieces: _Pieces, step: Step) -> list[np.ndarray]:
    """Return the bits of a, shared by sums, xor b, shared by exclusive or."""
    return [_sum(ring, pieces[0]) ^ _exclusive_or(pieces[1])]


_CORRECTIONS: dict[Kind, Callable[[Ring, _Pieces, Step], list[np.ndarray]]] = {
    Kind.MUL: _mul,
    Kind.MUL_PRIVATE: _mul_private,
    Kind.SQUARE: _square,
    Kind.DOT: _dot,
    Kind.AND: _and,
    Kind.TRUNCATE: _truncate,
    Kind.TRUNCATE_PROBABLY: _truncate_probably,
    Kind.EQUAL_ZERO: _equal_zero,
}

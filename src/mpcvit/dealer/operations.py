"""What the dealer computes: from both parties' random arrays to what one of them adds.

Each party draws its own arrays from its own seed. Their sum (or exclusive or)
is what neither knows: a, b, c. One party then adds a correction to its c, so
that the arrays fit each other, as in a b = c. The correction is all that the
dealer gives away; without the other's c it is a random number.
"""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from mpcvit.dealer.generator import draw, draw_bits
from mpcvit.dealer.ring import Ring, ring_of
from mpcvit.dealer.script import Kind, Step

Seeds = tuple[bytes, ...]


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
            buffers = [ring.subtract(ring.embed(bits), reduce(ring.add, pieces[0]))]
        else:
            buffers = _correct(step, ring, pieces)
    return b"".join(np.ascontiguousarray(buffer).tobytes() for buffer in buffers)


def _correct(step: Step, ring: Ring, pieces: list[list[np.ndarray]]) -> list[np.ndarray]:
    """Return the corrections of a step. `pieces` are random arrays by operand, then by party."""

    def summed(operand: int) -> np.ndarray:
        return reduce(ring.add, pieces[operand])

    def xored(operand: int) -> np.ndarray:
        return reduce(np.bitwise_xor, pieces[operand])

    match step.kind:
        case Kind.MUL:  # a b - c
            made = ring.multiply(summed(0), summed(1))
        case Kind.MUL_PRIVATE:  # the same, where one party drew a and the other b
            made = reduce(ring.multiply, pieces[0])
        case Kind.SQUARE:  # a a - b
            factor = summed(0)
            made = ring.multiply(factor, factor)
        case Kind.DOT:  # A B - C, as matrices
            rows, columns, inner = step.shape
            made = ring.matmul(summed(0), summed(1), (rows, columns, inner))
        case Kind.TRUNCATE:  # (a >> shift) - b, with a's sign
            made = ring.shift_right_signed(summed(0), step.shift)
        case Kind.TRUNCATE_PROBABLY:  # (a without its highest bit >> shift) - b; that bit - c
            whole = summed(0)
            rest = ring.shift_right(ring.shift_left(whole, 1), step.shift + 1)
            highest = ring.shift_right(whole, 8 * step.width - 1)
            return [ring.subtract(rest, summed(1)), ring.subtract(highest, summed(2))]
        case Kind.AND:  # (a and b) xor c
            return [(xored(0) & xored(1)) ^ xored(2)]
        case Kind.EQUAL_ZERO:  # the bits of a, shared by sums, xor b, shared by exclusive or
            return [summed(0) ^ xored(1)]
        case _:
            raise AssertionError(step.kind)
    return [ring.subtract(made, summed(-1))]

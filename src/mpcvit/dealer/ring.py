"""Arithmetic modulo 2^32, 2^64 and 2^128 on NumPy arrays.

Elements of 4 and 8 bytes are unsigned integers; those of 16 are pairs of a low
and a high 64-bit half along a last axis.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

WIDTHS = (4, 8, 16)
_LIMB_BITS = 16  # of a factor: sums of products of limbs stay exact in float64
_HALF = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class Ring:
    """One ring: from bytes to arrays and back, and what is computed between."""

    width: int  # bytes of an element
    add: Callable[[Array, Array], Array]
    subtract: Callable[[Array, Array], Array]
    multiply: Callable[[Array, Array], Array]
    shift_left: Callable[[Array, int], Array]
    shift_right: Callable[[Array, int], Array]

    def read(self, content: bytes) -> Array:
        if self.width == 16:
            return np.frombuffer(content, "<u8").reshape(-1, 2)
        return np.frombuffer(content, f"<u{self.width}")

    def embed(self, numbers: Array) -> Array:
        """Return whole numbers of up to 64 bits as elements."""
        if self.width == 16:
            return np.stack([numbers.astype("<u8"), np.zeros(numbers.shape, "<u8")], axis=-1)
        return numbers.astype(f"<u{self.width}")

    def shift_right_signed(self, x: Array, bits: int) -> Array:
        """Shift right, and fill with the sign."""
        if self.width != 16:
            return (x.view(f"<i{self.width}") >> bits).view(x.dtype)
        sign = (x[..., 1].view("<i8") >> 63).view("<u8")
        filled = self.shift_right(x, bits)
        mask = self.shift_left(np.full_like(x, np.uint64(2**64 - 1)), 128 - bits)
        return filled | (mask & sign[..., None]) if bits else filled

    def matmul(self, x: Array, y: Array, shape: tuple[int, int, int]) -> Array:
        """Return the product of x as [m, k] and y as [k, n], flat.

        Factors are cut into 16-bit limbs. All products of limbs that weigh the
        same, 2^(16 d), are one product of float64 matrices, exact for k up to
        2^18; BLAS knows no integers.
        """
        m, n, k = shape
        limbs = self.width * 8 // _LIMB_BITS
        left = _limbs(x, limbs).reshape(limbs, m, k)
        right = _limbs(y, limbs).reshape(limbs, k, n)
        total: Array | None = None
        for weight in range(limbs):
            rows = np.concatenate([left[index] for index in range(weight + 1)], axis=1)
            columns = np.concatenate([right[weight - index] for index in range(weight + 1)])
            part = self.embed((rows @ columns).astype("<u8").reshape(-1))
            part = self.shift_left(part, weight * _LIMB_BITS)
            total = part if total is None else self.add(total, part)
        assert total is not None, "a ring has limbs"
        return total


MOST_INNER = 1 << 18
"""Of a matrix product, for its limbs' sums to be exact."""


def ring_of(width: int) -> Ring:
    return _RINGS[width]


def _limbs(x: Array, limbs: int) -> Array:
    """Return limbs by weight, as float64."""
    pieces = np.ascontiguousarray(x).view("<u2").reshape(-1, limbs)
    return np.ascontiguousarray(pieces.T, np.float64)


def _add_pairs(x: Array, y: Array) -> Array:
    low = x[..., 0] + y[..., 0]
    return np.stack([low, x[..., 1] + y[..., 1] + (low < x[..., 0])], axis=-1)


def _subtract_pairs(x: Array, y: Array) -> Array:
    borrow = x[..., 0] < y[..., 0]
    return np.stack([x[..., 0] - y[..., 0], x[..., 1] - y[..., 1] - borrow], axis=-1)


def _multiply_pairs(x: Array, y: Array) -> Array:
    """Multiply in 32-bit digits of the low halves; the high ones only reach the high half."""
    low_x, low_y = x[..., 0] & _HALF, y[..., 0] & _HALF
    high_x, high_y = x[..., 0] >> _32, y[..., 0] >> _32
    low, cross_x, cross_y = low_x * low_y, low_x * high_y, high_x * low_y
    middle = (low >> _32) + (cross_x & _HALF) + (cross_y & _HALF)
    high = high_x * high_y + (cross_x >> _32) + (cross_y >> _32) + (middle >> _32)
    high += x[..., 0] * y[..., 1] + x[..., 1] * y[..., 0]
    return np.stack([(low & _HALF) | (middle << _32), high], axis=-1)


def _shift_pairs(x: Array, bits: int, *, left: bool) -> Array:
    """Shift pairs; what leaves one half enters the other."""
    from_half, into_half = (x[..., 0], x[..., 1]) if left else (x[..., 1], x[..., 0])
    shift, back = (np.left_shift, np.right_shift) if left else (np.right_shift, np.left_shift)
    if bits == 0:
        return x
    if bits >= 128:
        return np.zeros_like(x)
    if bits >= 64:
        rest, moved = np.zeros_like(from_half), shift(from_half, np.uint64(bits - 64))
    else:
        rest = shift(from_half, np.uint64(bits))
        moved = shift(into_half, np.uint64(bits)) | back(from_half, np.uint64(64 - bits))
    return np.stack([rest, moved] if left else [moved, rest], axis=-1)


def _shift_words(shift: Callable[[Array, Array], Array]) -> Callable[[Array, int], Array]:
    def apply(x: Array, bits: int) -> Array:
        if bits >= x.dtype.itemsize * 8:  # which NumPy leaves open
            return np.zeros_like(x)
        return shift(x, np.asarray(bits, x.dtype))

    return apply


def _words(width: int) -> Ring:
    return Ring(
        width=width,
        add=np.add,
        subtract=np.subtract,
        multiply=np.multiply,
        shift_left=_shift_words(np.left_shift),
        shift_right=_shift_words(np.right_shift),
    )


_RINGS = {
    4: _words(4),
    8: _words(8),
    16: Ring(
        width=16,
        add=_add_pairs,
        subtract=_subtract_pairs,
        multiply=_multiply_pairs,
        shift_left=partial(_shift_pairs, left=True),
        shift_right=partial(_shift_pairs, left=False),
    ),
}

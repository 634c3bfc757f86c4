"""Products of many small matrices: of images, and of the heads of each, several in one exchange."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

# What takes as long as an exchange over a WAN, in a 128-bit ring: numbers opened, at 44 MB/s;
# numbers that both parties draw, and a dealer deals ahead of time; and multiplications of a
# product of matrices, by one core.
NUMBERS_PER_EXCHANGE = 55_000
_DEALT_PER_EXCHANGE = 220_000
PRODUCTS_PER_EXCHANGE = 5_000_000

Pair = tuple[Array, Array]


def products(pairs: Sequence[Pair]) -> list[Array]:
    """Return a b for each pair of matrices, of any number of rows, else of equal shapes.

    SPU takes an exchange for each product of two matrices. Several pairs share one: the
    product of all rows with all columns. What belongs to two pairs is computed and thrown
    away. It is opened to nobody.
    """
    rows = sum(a.shape[0] for a, _ in pairs) / len(pairs)
    count = together(len(pairs), rows, *pairs[0][1].shape)
    groups = (pairs[start : start + count] for start in range(0, len(pairs), count))
    return [product for group in groups for product in _multiply(group)]


def together(pairs: int, rows: float, inner: int, columns: int) -> int:
    """Return how many pairs share a product: many save exchanges, few computing and dealing.

    The numbers opened are always the same.
    """

    def worth(count: int) -> float:
        """Return the cost in exchanges."""
        results = pairs * count * rows * columns
        return (
            math.ceil(pairs / count)
            + results / _DEALT_PER_EXCHANGE
            + results * inner / PRODUCTS_PER_EXCHANGE
        )

    return min(range(1, pairs + 1), key=worth)


def _multiply(pairs: Sequence[Pair]) -> list[Array]:
    if len(pairs) == 1:
        ((a, b),) = pairs
        return [a @ b]
    columns = pairs[0][1].shape[1]
    whole = jnp.concatenate([a for a, _ in pairs]) @ jnp.concatenate([b for _, b in pairs], axis=1)
    stops = np.cumsum([a.shape[0] for a, _ in pairs])
    return [
        whole[stop - a.shape[0] : stop, place * columns : (place + 1) * columns]
        for place, ((a, _), stop) in enumerate(zip(pairs, stops, strict=True))
    ]

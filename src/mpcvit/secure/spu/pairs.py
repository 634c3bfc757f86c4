"""Pairs of the values of each group: which are compared, and where each value finds its own."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

# what saves fewer comparisons than this is not worth a second level's exchanges on a WAN
_WORTH_A_LEVEL = 170_000


def pairs_of(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second of every pair.

    >>> [side.tolist() for side in pairs_of([np.array([0, 1, 2]), np.array([3, 4])])]
    [[0, 0, 1, 3], [1, 2, 2, 4]]
    """
    places = [np.triu_indices(len(part), 1) for part in groups]
    first, second = (
        np.concatenate([part[pair[side]] for part, pair in zip(groups, places, strict=True)])
        for side in (0, 1)
    )
    return first, second


def lay_out(of_first: Array, of_second: Array, groups: Sequence[np.ndarray]) -> Array:
    """Return for each value what its pairs say: of the one array as first, of the other as second.

    The result is [batch, value, other]. In a smaller group, zeros or False are in place of the
    others that are missing.
    """
    nothing = jnp.zeros_like(of_first[:, :1])
    both = jnp.concatenate([of_first, of_second, nothing], axis=1)
    pairs, most = of_first.shape[1], max(len(part) for part in groups)
    tables, start = [], 0
    for part in groups:
        first, second = np.triu_indices(len(part), 1)
        table = np.full((len(part), most - 1), 2 * pairs)
        table[first, second - 1] = start + np.arange(len(first))
        table[second, first] = pairs + start + np.arange(len(first))
        tables.append(table)
        start += len(first)
    table = np.concatenate(tables)
    return jnp.take(both, table.ravel(), axis=1).reshape(-1, *table.shape)


def groups_of(size: int, count: int) -> int:
    """Return how many groups compare least to find the `count` best.

    It is one if a second level costs more than it saves.
    """

    def compared(groups: int) -> int:
        own, finalists = math.ceil(size / groups), groups * count
        return groups * own * (own - 1) // 2 + finalists * (finalists - 1) // 2

    options = range(2, size // (2 * count) + 1)
    best = min(options, key=compared, default=1)
    return best if size * (size - 1) // 2 - compared(best) > _WORTH_A_LEVEL else 1

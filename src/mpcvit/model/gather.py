"""Static selection along one axis, and its inverse.

Indices are known when a program is traced, so taking everything costs nothing
and a contiguous run is a slice.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array


def gather(x: Array, indices: Sequence[int], *, axis: int) -> Array:
    """Take some entries of an axis.

    >>> gather(jnp.arange(5), (1, 2, 3), axis=0).tolist()
    [1, 2, 3]
    >>> gather(jnp.arange(5), (4, 0), axis=0).tolist()
    [4, 0]
    """
    first, count = indices[0], len(indices)
    if tuple(indices) != tuple(range(first, first + count)):
        return jnp.take(x, np.array(indices), axis=axis)
    return x if count == x.shape[axis] else lax.slice_in_dim(x, first, first + count, axis=axis)


def merge(parts: Sequence[Array], indices: Sequence[Sequence[int]], *, axis: int) -> Array:
    """Put gathered parts back where `indices` says each came from.

    >>> merge([jnp.array([10, 30]), jnp.array([20])], [(0, 2), (1,)], axis=0).tolist()
    [10, 20, 30]
    """
    if len(parts) == 1:
        return parts[0]
    order = np.argsort([index for part in indices for index in part])
    return gather(jnp.concatenate(parts, axis=axis), order.tolist(), axis=axis)

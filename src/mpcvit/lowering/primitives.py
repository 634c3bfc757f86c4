"""The operations of lowered networks in NumPy, by the names of JAX's primitives."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_Array = np.ndarray


def bind(primitive: Any, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
    """Apply a primitive as JAX does, which also works while JAX traces."""
    results = primitive.bind(*arguments, **settings)
    return results if primitive.multiple_results else [results]


def apply_in_numpy(
    primitive: Any, arguments: Sequence[_Array], settings: dict[str, Any]
) -> list[_Array]:
    """Apply a primitive in NumPy. JAX computes those that lowered networks do not use."""
    if known := _PRIMITIVES.get(primitive.name):
        return [known(*arguments, **settings)]
    return [np.asarray(result) for result in bind(primitive, arguments, settings)]


def _dot_general(x: _Array, y: _Array, *, dimension_numbers: Any, **_: Any) -> _Array:
    (over_x, over_y), (batch_x, batch_y) = dimension_numbers
    free_x = [axis for axis in range(x.ndim) if axis not in (*over_x, *batch_x)]
    free_y = [axis for axis in range(y.ndim) if axis not in (*over_y, *batch_y)]
    batch = [x.shape[axis] for axis in batch_x]
    rows, columns = [x.shape[axis] for axis in free_x], [y.shape[axis] for axis in free_y]
    inner = math.prod(x.shape[axis] for axis in over_x)
    left = x.transpose(*batch_x, *free_x, *over_x).reshape(*batch, math.prod(rows), inner)
    right = y.transpose(*batch_y, *over_y, *free_y).reshape(*batch, inner, math.prod(columns))
    return (left @ right).reshape(*batch, *rows, *columns)


def _broadcast_in_dim(
    x: _Array, *, shape: Sequence[int], broadcast_dimensions: Sequence[int], **_: Any
) -> _Array:
    wide = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, x.shape, strict=True):
        wide[axis] = size
    return np.broadcast_to(x.reshape(wide), shape)


def _slice(
    x: _Array,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None,
) -> _Array:
    steps = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _pad(x: _Array, value: _Array, *, padding_config: Sequence[tuple[int, int, int]]) -> _Array:
    assert all(low >= 0 and high >= 0 and inner == 0 for low, high, inner in padding_config)
    return np.pad(x, [(low, high) for low, high, _ in padding_config], constant_values=value)


def _select_n(which: _Array, *cases: _Array) -> _Array:
    return np.choose(which, cases) if len(cases) > 2 else np.where(which, cases[1], cases[0])


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arrays, **_: function(*arrays)


_PRIMITIVES: dict[str, Callable[..., _Array]] = {
    name: _elementwise(function)
    for name, function in {
        "abs": np.abs,
        "add": np.add,
        "add_any": np.add,
        "and": np.logical_and,
        "copy": np.copy,
        "div": np.divide,
        "eq": np.equal,
        "exp": np.exp,
        "ge": np.greater_equal,
        "gt": np.greater,
        "le": np.less_equal,
        "lt": np.less,
        "max": np.maximum,
        "min": np.minimum,
        "mul": np.multiply,
        "neg": np.negative,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "select_n": _select_n,
        "sqrt": np.sqrt,
        "square": np.square,
        "sub": np.subtract,
        "tanh": np.tanh,
    }.items()
} | {
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": lambda *arrays, dimension: np.concatenate(arrays, axis=dimension),
    "convert_element_type": lambda x, *, new_dtype, **_: x.astype(new_dtype),
    "dot_general": _dot_general,
    "expand_dims": lambda x, *, dimensions: np.expand_dims(x, dimensions),
    "integer_pow": lambda x, *, y: x**y,
    "pad": _pad,
    "reduce_max": lambda x, *, axes: x.max(axis=axes),
    "reduce_min": lambda x, *, axes: x.min(axis=axes),
    "reduce_sum": lambda x, *, axes: x.sum(axis=axes),
    "reshape": lambda x, *, new_sizes, **_: x.reshape(new_sizes),
    "rev": lambda x, *, dimensions: np.flip(x, axis=dimensions),
    "slice": _slice,
    "squeeze": lambda x, *, dimensions: x.squeeze(axis=dimensions),
    "transpose": lambda x, *, permutation: x.transpose(permutation),
}

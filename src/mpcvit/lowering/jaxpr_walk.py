"""Every operation of a function, one by one: to see what it gives, or to round it."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.experimental import enable_x64

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where primitives keep the programs they call
_ROUNDED = ("mul", "dot_general", "literal", "input")  # what fixed point rounds
_Array = np.ndarray
_QUICKLY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}

Traced = tuple[core.ClosedJaxpr, Any]
"""The operations of a function, and the shapes that it gives: `make_jaxpr` with `return_shape`."""

Visit = Callable[[str, Any], Any]
"""Takes what an operation gave, under the primitive's name, and gives what others go on with."""


def _leave(operation: str, value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class RecordedValue:
    """The result of one operation."""

    operation: str  # the JAX primitive that made it
    largest: float  # magnitude
    size: int


def record_values(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[RecordedValue]]:
    """Return the results of a function and of each of its floating-point operations, in order."""
    operations: list[tuple[str, int]] = []

    def watched(*arguments: Any) -> tuple[Any, Any]:
        magnitudes = []
        operations.clear()

        def note(operation: str, value: Any) -> Any:
            if operation not in ("literal", "input"):
                operations.append((operation, value.size))
                magnitudes.append(jnp.abs(value).max(initial=0.0))
            return value

        return _visit_all(function, arguments, note), jnp.stack(magnitudes)

    # once, so that making it fast would take longer than it does
    run = jax.jit(watched).lower(*arguments).compile(_QUICKLY)
    result, magnitudes = run(*arguments)
    return result, [
        RecordedValue(operation=operation, largest=float(largest), size=size)
        for (operation, size), largest in zip(operations, magnitudes, strict=True)
    ]


def run_in_numpy(traced: Traced, *arguments: Any, visit: Visit = _leave) -> Any:
    """Return what a function gives, each operation computed by NumPy, so that none is compiled.

    Lowering computes many networks on few images each, and compiling them would
    take longer than computing them.
    """
    program, result = traced
    inputs = [visit("input", np.asarray(leaf)) for leaf in jax.tree.leaves(arguments)]
    with np.errstate(all="ignore"):  # as JAX computes: what overflows is seen in the result
        leaves = _evaluate(
            program.jaxpr, program.consts, inputs, visit, _apply_in_numpy, np.asarray
        )
    return jax.tree.unflatten(jax.tree.structure(result), leaves)


def record_in_numpy(
    traced: Traced, operations: Container[str], *arguments: Any
) -> tuple[Any, list[RecordedValue]]:
    """Return what a function gives, and the results of some of its operations, in order."""
    values: list[RecordedValue] = []

    def note(operation: str, value: Any) -> Any:
        if operation in operations:
            largest = float(np.abs(value).max(initial=0.0))
            values.append(RecordedValue(operation=operation, largest=largest, size=value.size))
        return value

    return run_in_numpy(traced, *arguments, visit=note), values


def in_fixed_point(function: Callable[..., Any], fraction_bits: int) -> Callable[..., np.ndarray]:
    """Return a function that computes in multiples of 2^-fraction_bits.

    In float64, so that nothing else is rounded. Inputs, constants and products
    are rounded to the nearest multiple; a private run's truncation is off by at
    most one more.
    """

    def to_grid(operation: str, value: Any) -> Any:
        if operation not in _ROUNDED:
            return value
        return jnp.round(value * 2.0**fraction_bits) * 2.0**-fraction_bits

    rounded = jax.jit(lambda *arguments: _visit_all(function, arguments, to_grid))

    def compute(*arguments: Any) -> np.ndarray:
        with enable_x64():
            exact = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), arguments)
            return np.asarray(rounded(*exact), np.float32)

    return compute


def _visit_all(function: Callable[..., Any], arguments: tuple[Any, ...], visit: Visit) -> Any:
    traced = jax.make_jaxpr(function)(*arguments)
    inputs = [visit("input", leaf) for leaf in jax.tree.leaves(arguments)]
    (result,) = _evaluate(traced.jaxpr, traced.consts, inputs, visit, _bind, jnp.asarray)
    return result


def _evaluate(
    program: Any,
    constants: list[Any],
    inputs: list[Any],
    visit: Visit,
    apply: Callable[..., list[Any]],
    asarray: Callable[[Any], Any],
) -> list[Any]:
    known: dict[Any, Any] = {}
    last = {
        place: index
        for index, equation in enumerate(program.eqns)
        for place in equation.invars
        if not isinstance(place, core.Literal)
    }

    def visited(operation: str, value: Any) -> Any:
        return visit(operation, value) if jnp.issubdtype(value.dtype, jnp.floating) else value

    def read(place: Any) -> Any:
        if isinstance(place, core.Literal):
            return visited("literal", asarray(place.val))
        return known[place]

    constants = [visited("literal", asarray(constant)) for constant in constants]
    known.update(zip(program.constvars, constants, strict=True))
    known.update(zip(program.invars, inputs, strict=True))
    kept = {place for place in program.outvars if not isinstance(place, core.Literal)}
    for index, equation in enumerate(program.eqns):
        arguments = [read(place) for place in equation.invars]
        for place in {place for place in equation.invars if not isinstance(place, core.Literal)}:
            if last[place] == index and place not in kept:
                del known[place]  # large networks would not fit otherwise
        inner = next((equation.params[name] for name in _INNER if name in equation.params), None)
        if inner is not None:
            results = _evaluate(inner.jaxpr, inner.consts, arguments, visit, apply, asarray)
        else:
            results = apply(equation.primitive, arguments, equation.params)
            results = [visited(equation.primitive.name, result) for result in results]
        known.update(zip(equation.outvars, results, strict=True))
    return [read(place) for place in program.outvars]


def _bind(primitive: Any, arguments: Sequence[Any], settings: dict[str, Any]) -> list[Any]:
    """Apply a primitive as JAX does, which also works while JAX traces."""
    results = primitive.bind(*arguments, **settings)
    return results if primitive.multiple_results else [results]


def _apply_in_numpy(
    primitive: Any, arguments: Sequence[_Array], settings: dict[str, Any]
) -> list[_Array]:
    """Apply a primitive in NumPy. JAX computes those that lowered networks do not use."""
    if known := _PRIMITIVES.get(primitive.name):
        return [known(*arguments, **settings)]
    return [np.asarray(result) for result in _bind(primitive, arguments, settings)]


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
    no, yes = cases  # a choice between more is no part of a network
    return np.where(which, yes, no)


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
        "or": np.logical_or,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "select_n": _select_n,
        "sqrt": np.sqrt,
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

"""Every operation of a function, one by one: to see what it gives, or to round it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core
from jax.experimental import enable_x64

from mpcvit.lowering.primitives import apply_in_numpy, bind

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where primitives keep the programs they call
_ROUNDED = ("mul", "dot_general", "literal", "input")  # what fixed point rounds
_QUICKLY: dict[str, str | bool] = {"xla_backend_optimization_level": "0"}

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


def run_in_numpy(function: Callable[..., Any], *arguments: Any, visit: Visit = _leave) -> Any:
    """Return what a function gives, each operation computed by NumPy, so that none is compiled.

    Lowering computes many networks on few images each, and compiling them would
    take longer than computing them.
    """
    traced, result = jax.make_jaxpr(function, return_shape=True)(*arguments)
    inputs = [visit("input", np.asarray(leaf)) for leaf in jax.tree.leaves(arguments)]
    with np.errstate(all="ignore"):  # as JAX computes: what overflows is seen in the result
        leaves = _evaluate(traced.jaxpr, traced.consts, inputs, visit, apply_in_numpy, np.asarray)
    return jax.tree.unflatten(jax.tree.structure(result), leaves)


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
    (result,) = _evaluate(traced.jaxpr, traced.consts, inputs, visit, bind, jnp.asarray)
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

"""What every operation of a function gives: run it in plaintext, step by step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import core

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where primitives keep the programs they call


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The result of one operation."""

    operation: str  # the JAX primitive that made it
    largest: float  # magnitude
    size: int


def observe(function: Callable[..., Any], *arguments: Any) -> tuple[Any, list[Observed]]:
    """A function's result, and that of each of its floating-point operations, in order."""
    traced = jax.make_jaxpr(function)(*arguments)
    values: list[Observed] = []
    leaves = jax.tree.leaves(arguments)
    (result,) = _evaluate(traced.jaxpr, traced.consts, leaves, values)
    return result, values


def _evaluate(
    program: Any, constants: list[Any], inputs: list[Any], values: list[Observed]
) -> list[Any]:
    known: dict[Any, Any] = {}

    def read(place: Any) -> Any:
        return place.val if isinstance(place, core.Literal) else known[place]

    known.update(zip(program.constvars, constants, strict=True))
    known.update(zip(program.invars, inputs, strict=True))
    for equation in program.eqns:
        arguments = [read(place) for place in equation.invars]
        inner = next((equation.params[name] for name in _INNER if name in equation.params), None)
        if inner is not None:
            results = _evaluate(inner.jaxpr, inner.consts, arguments, values)
        else:
            results = equation.primitive.bind(*arguments, **equation.params)
            results = results if equation.primitive.multiple_results else [results]
            for result in results:
                if jnp.issubdtype(result.dtype, jnp.floating):
                    values.append(
                        Observed(
                            operation=equation.primitive.name,
                            largest=float(jnp.abs(result).max(initial=0.0)),
                            size=result.size,
                        )
                    )
        known.update(zip(equation.outvars, results, strict=True))
    return [read(place) for place in program.outvars]

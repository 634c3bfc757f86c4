"""Would a network's values fit into fixed point? Asked in plaintext, before a private run.

Only whoever holds both a model and images can ask: the model's owner with
calibration images, or a test.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from mpcvit.lower.program import Model
from mpcvit.profile import Profile
from mpcvit.runtime.card import ModelCard
from mpcvit.runtime.stages import Stage, stage_network

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # where primitives keep the programs they call


@dataclass(frozen=True, kw_only=True)
class Overflow:
    """A value beyond what the ring holds."""

    stage: str
    operation: str  # the JAX primitive that made it
    largest: float
    limit: float

    def __str__(self) -> str:
        return (
            f"{self.stage}: {self.operation} reaches {self.largest:.3g}, "
            f"beyond the {self.limit:.3g} that the profile can represent"
        )


def representable(
    model: Model, images: np.ndarray, profile: Profile
) -> tuple[Overflow, ...]:
    """The first value of each stage that would wrap around the ring; empty if none would.

    `images` are normalised float32, as `Classifier.preprocess` makes them.
    """
    stages = stage_network(ModelCard.of(model), profile).stages
    found = []
    for stage, values in _values(stages, model.parameters, images):
        for operation, largest in values:
            if not largest < profile.magnitude_limit:  # also NaN
                limit = profile.magnitude_limit
                found.append(
                    Overflow(stage=stage, operation=operation, largest=largest, limit=limit)
                )
                break
    return tuple(found)


def _values(
    network: tuple[Stage, ...], parameters: Any, images: np.ndarray
) -> list[tuple[str, list[tuple[str, float]]]]:
    """For every stage, the largest magnitude of each operation's result, in order."""
    x: Any = jnp.asarray(images)
    stages = []
    for stage in network:
        own = stage.parameters(parameters)
        traced = jax.make_jaxpr(stage.function)(own, x)
        values: list[tuple[str, float]] = []
        leaves = jax.tree.leaves((own, x))
        (x,) = _evaluate(traced.jaxpr, traced.consts, leaves, values)
        stages.append((stage.name, values))
    return stages


def _evaluate(
    program: Any, constants: list[Any], inputs: list[Any], values: list[tuple[str, float]]
) -> list[Any]:
    """Run a traced program step by step, and note the largest magnitude of each result."""
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
                    largest = float(jnp.abs(result).max(initial=0.0))
                    values.append((equation.primitive.name, largest))
        known.update(zip(equation.outvars, results, strict=True))
    return [read(place) for place in program.outvars]

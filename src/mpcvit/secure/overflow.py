"""Would a network's values fit into fixed point? Asked in plaintext, before a private run.

The check needs both a model and images: its owner has calibration images.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import Reveal
from mpcvit.lowering.jaxpr_walk import RecordedValue, record_values
from mpcvit.lowering.out_of_range import Trust
from mpcvit.lowering.program import Model
from mpcvit.secure.card import ModelCard
from mpcvit.secure.spu.stages import Stage, shared_parameters, stage_network


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


def find_overflows(model: Model, images: np.ndarray, profile: Profile) -> tuple[Overflow, ...]:
    """Return the first value of each stage that would wrap around the ring, if any.

    `images` are normalised float32, as `Classifier.preprocess` makes them.
    """
    card = ModelCard.of(model, Reveal.LOGITS)
    # a guard looks on, and changes no value
    card = replace(card, public=replace(card.public, trust=Trust()))
    stages = stage_network(card, profile).stages
    found = []
    for stage, values in _values(stages, shared_parameters(model), images):
        for value in values:
            if not value.largest < profile.magnitude_limit:  # also NaN
                found.append(
                    Overflow(
                        stage=stage,
                        operation=value.operation,
                        largest=value.largest,
                        limit=profile.magnitude_limit,
                    )
                )
                break
    return tuple(found)


def _values(
    network: tuple[Stage, ...], parameters: Any, images: np.ndarray
) -> list[tuple[str, list[RecordedValue]]]:
    """Return what each operation gave, by stage."""
    x: Any = jnp.asarray(images)
    stages = []
    for stage in network:
        x, values = record_values(stage.function, stage.parameters(parameters), x)
        stages.append((stage.name, values))
    return stages

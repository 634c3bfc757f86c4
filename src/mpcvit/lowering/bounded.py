"""How large the values of a network become: none may leave what the engine holds."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.errors import UserError
from mpcvit.lowering.engine import EngineSettings, largest_safe
from mpcvit.lowering.fold import Weights
from mpcvit.lowering.jaxpr_walk import RecordedValue, run_in_numpy
from mpcvit.lowering.network import network_parts
from mpcvit.lowering.sites import Functions

_PRODUCTS = ("mul", "dot_general")
_CLIP = 8  # that is offered; norms of trained networks rarely give more

StageValues = dict[str, list[RecordedValue]]
"""What the products of each stage gave."""


def stage_values(
    config: ModelConfig,
    architecture: Architecture,
    functions: Functions,
    weights: Weights,
    images: np.ndarray,
) -> StageValues:
    """Return the products of a lowered network, stage by stage."""
    x: Any = images
    values: StageValues = {}
    for part in network_parts(config, architecture, functions):
        products = values[part.name] = []

        def note(operation: str, value: Any, products: list[RecordedValue] = products) -> Any:
            if operation in _PRODUCTS:
                largest = float(np.abs(value).max(initial=0.0))
                products.append(
                    RecordedValue(operation=operation, largest=largest, size=value.size)
                )
            return value

        x = run_in_numpy(part.function, weights[part.weights], x, visit=note)
    return values


def count_products(values: StageValues, images: int) -> float:
    """Return how many numbers an inference truncates."""
    return sum(value.size for stage in values.values() for value in stage) / images


def require_bounded(
    values_of: Callable[[np.ndarray], StageValues],
    pictures: Mapping[str, np.ndarray],
    engine: EngineSettings,
    profile: Profile,
) -> None:
    """Refuse a network whose values run away for some picture, and say in which block."""
    values = values_of(np.stack([*pictures.values()]))
    products = count_products(values, len(pictures))
    limit = min(engine.apply(profile).magnitude_limit, largest_safe(engine, products=products))
    if _first_beyond(values, limit) is None:
        return
    for name, picture in pictures.items():
        if (found := _first_beyond(values_of(picture[None]), limit)) is not None:
            stage, value = found
            raise UserError(
                f"{stage} runs away: for the picture {name!r} a product reaches "
                f"{value.largest:.3g}, but the engine holds {limit:.3g}. Keep a layer norm where "
                'the whole residual passes (model.layer_norms, such as "1.norm2"), or clip what '
                f"batch norms give (model.clip = {_CLIP}), and train again"
            )


def _first_beyond(values: StageValues, limit: float) -> tuple[str, RecordedValue] | None:
    """Return the first stage with a value beyond the limit, or with one that is no number."""
    for name, stage in values.items():
        for value in stage:
            if not value.largest < limit:
                return name, value
    return None

"""What a layer cannot do by sums and products alone: exactly, and by stand-ins."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig, NormForm
from mpcvit.lowering.even_chain import EVEN_ACTIVATIONS
from mpcvit.lowering.fold import mlp_forms
from mpcvit.lowering.heads import queries_of
from mpcvit.lowering.plan import HEAD_NORM, Function, LayerFunctions, Plan, place_of
from mpcvit.lowering.steep_chain import rectified_cube
from mpcvit.model.layers import activate

Named = Mapping[str, Function | None]
Wrap = Callable[[str, Any], Any]
"""Takes a place and the function there, and gives the one to use."""


class Functions:
    """The functions of a network's layers, and of its last norm."""

    def __init__(self, layers: Sequence[Named], norm: Function | None) -> None:
        self.layers = tuple(LayerFunctions(**layer) for layer in layers)
        self.norm = norm

    def wrapped(self, wrap: Wrap) -> "Functions":
        """The same, with each function that there is replaced."""

        def replaced(place: str, own: Function | None) -> Function | None:
            return None if own is None else wrap(place, own)

        return Functions(
            [
                {name: replaced(place_of(index, name), own) for name, own in vars(layer).items()}
                for index, layer in enumerate(self.layers)
            ],
            replaced(HEAD_NORM, self.norm),
        )


def exact_functions(config: ModelConfig, architecture: Architecture) -> Functions:
    """What each stand-in stands for, in float32, where some token that is read needs it."""
    return Functions(
        [
            _exact_layer(config, layer.of_first(queries_of(config, index)))
            for index, layer in enumerate(architecture.layers)
        ],
        _exact_norm(config),
    )


def functions_of(plan: Plan, config: ModelConfig, architecture: Architecture) -> Functions:
    """Return a plan's stand-ins; refuse a plan that lacks one."""
    exact = exact_functions(config, architecture)
    plan.require(exact.layers, exact.norm)
    return Functions([vars(layer) for layer in plan.layers], plan.norm)


def _exact_norm(config: ModelConfig) -> Function | None:
    if config.norm is NormForm.LINEAR:
        return None
    return lambda x: lax.rsqrt(x + config.norm_eps)


def _exact_layer(config: ModelConfig, layer: LayerArchitecture) -> Named:
    wanted = {site for kind in layer.kinds for site in kind.sites}

    def length(x: Array) -> Array:
        return lax.rsqrt(x + config.xnorm_eps)

    of_kinds: Named = {
        "exponential": jnp.exp,
        "temper": lambda x: 1 / x,
        "cube": rectified_cube,
        "query_length": length,
        "product_length": length,
        "denominator": lambda x: 1 / (x + config.attention_eps),
    }
    bends = config.activation in EVEN_ACTIVATIONS and MlpForm.ACTIVATED in mlp_forms(layer)
    return {
        "norm1": _exact_norm(config),
        **{site: own if site in wanted else None for site, own in of_kinds.items()},
        "norm2": _exact_norm(config),
        "activation": (lambda x: activate(config.activation, x)) if bends else None,
    }

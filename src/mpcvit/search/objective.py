"""The latency term of a search: seconds of the architecture parameters, smoothly."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.config import CostForm, SearchConfig
from mpcvit.artifacts.latency import Cost, LatencyTable


@dataclass(frozen=True, kw_only=True)
class LayerPrice:
    """Seconds of what a layer may drop, when nothing is dropped.

    `shared_s` is paid while anyone in the layer keeps it, `own_s` in
    proportion to how many do.
    """

    shared_s: float
    own_s: float

    @property
    def total_s(self) -> float:
        return self.shared_s + self.own_s


@dataclass(frozen=True, kw_only=True)
class Prices:
    """What alpha and beta cost, layer by layer."""

    attention: tuple[LayerPrice, ...]
    activation: tuple[LayerPrice, ...]

    @classmethod
    def of(cls, search: SearchConfig, table: LatencyTable) -> "Prices":
        """Price attention as it is, and an activation by what it adds to its MLP."""
        attention, activation = [], []
        for index in range(len(table.layers)):
            kept = table.attention_cost(index, search.kept)
            attention.append(_price(table, kept.shared, kept.per_unit.times(table.heads)))
            full = table.mlp_cost(index, MlpForm.ACTIVATED)
            bare = table.mlp_cost(index, MlpForm.LINEAR)
            activation.append(
                _price(
                    table,
                    full.shared + bare.shared.times(-1),
                    (full.per_unit + bare.per_unit.times(-1)).times(table.tokens),
                )
            )
        return cls(attention=tuple(attention), activation=tuple(activation))

    def activation_weight(self, search: SearchConfig) -> float:
        """Return eta as configured, or lambda Lat(GeLU) / Lat(attention)."""
        if search.activation_weight > 0:
            return search.activation_weight
        attention_s = sum(price.total_s for price in self.attention)
        activation_s = sum(price.total_s for price in self.activation)
        return search.latency_weight * activation_s / attention_s


def expected_seconds(
    choices: Sequence[jax.Array], prices: Sequence[LayerPrice], form: CostForm
) -> jax.Array:
    """Return the seconds of the layers' choices, each an array of alphas or of betas.

        additive       sum_i Lat_i mean(a_i)
        shared-rounds  sum_i shared_i rms(a_i) + own_i mean(a_i)

    The root mean square is a group lasso: all choices of a layer weigh on one
    price, which vanishes only with the last of them. Choices lie in [0, 1], so
    their absolute values are themselves.
    Source: docs/numerics.md#search

    >>> price = LayerPrice(shared_s=3.0, own_s=1.0)
    >>> half = jnp.array([1.0, 0.0, 0.0, 0.0])
    >>> expected_seconds([half], [price], CostForm.ADDITIVE).item()
    1.0
    >>> round(expected_seconds([half], [price], CostForm.SHARED_ROUNDS).item(), 3)
    1.75
    """
    total = jnp.zeros(())
    for choice, price in zip(choices, prices, strict=True):
        mean = choice.mean()
        if form is CostForm.ADDITIVE:
            total += price.total_s * mean
        else:
            # 1e-12 keeps the root's slope finite where a whole layer is 0
            rms = jnp.sqrt(jnp.square(choice).mean() + 1e-12)
            total += price.shared_s * rms + price.own_s * mean
    return total


def _price(table: LatencyTable, shared: Cost, own: Cost) -> LayerPrice:
    return LayerPrice(shared_s=table.seconds(shared), own_s=table.seconds(own))

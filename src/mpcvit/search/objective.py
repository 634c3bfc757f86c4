"""The latency term of a search: seconds of the architecture parameters, smoothly.

`Prices` and `expected_seconds` are the paper's, for attention and activations alone.
`FormPrices` and `network_seconds` are for searches of norms and tokens too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.choices import CostForm, SearchConfig
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.forms import Activation
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
    """The prices of alpha and beta, layer by layer."""

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


@dataclass(frozen=True, kw_only=True)
class FormPrices:
    """Seconds of a layer that has some number of tokens, beyond its cheapest choices."""

    products_s: float
    attention: LayerPrice
    norm1_s: float
    norm2_s: float
    gain_s: float
    head_s: float
    activation_s: float

    @classmethod
    def of(
        cls, model: ModelConfig, search: SearchConfig, table: LatencyTable, layer: int, tokens: int
    ) -> "FormPrices":
        costs = table.layer_costs(layer, tokens)
        assert costs.norms is not None
        kept = table.attention_cost(layer, search.kept, tokens)
        cheap = table.attention_cost(layer, search.replacement, tokens)
        activation = costs.activation[model.activation]
        return cls(
            products_s=table.seconds(costs.products + cheap.total(table.heads)),
            attention=_price(
                table,
                kept.shared + cheap.shared.times(-1),
                (kept.per_unit + cheap.per_unit.times(-1)).times(table.heads),
            ),
            norm1_s=table.seconds(costs.norms.norm1),
            norm2_s=table.seconds(costs.norms.norm2),
            gain_s=table.seconds(costs.norms.gain),
            head_s=table.seconds(costs.norms.head),
            activation_s=table.seconds(activation)
            - table.seconds(costs.activation[Activation.QUADRATIC]),
        )


@dataclass(frozen=True, kw_only=True)
class NetworkShares:
    """The architecture parameters of a whole network, layer by layer; none where not searched."""

    alpha: Sequence[jax.Array]
    beta: Sequence[jax.Array]
    norms: Sequence[jax.Array]  # and of the norm before the head
    tokens: Sequence[jax.Array]


def network_seconds(
    shares: NetworkShares, prices: Sequence[Sequence[FormPrices]], form: CostForm
) -> jax.Array:
    """Return the seconds of layers by all of their choices; `prices` are by layer and tokens.

        sum_i sum_n p_in (products + attention(a_i) + g1 norm1 + g2 norm2
                          + (g1 or g2) gain + b activation),  u or v = u + v - u v

    p_in is the share of n tokens in layer i: tokens that one layer merges stay merged, so
    the share of more than n tokens is a product over layers up to i. What is not searched
    has a share of one, for it stays as it is.
    Source: docs/numerics.md#search
    """
    total, one = jnp.zeros(()), jnp.ones(())
    unmerged = jnp.ones(len(prices[0]) - 1)
    for index, by_tokens in enumerate(prices):
        if shares.tokens:
            unmerged = unmerged * shares.tokens[index]
        # more tokens than a count are left only if no smaller count was merged to either
        more = jnp.flip(jnp.cumprod(jnp.flip(unmerged)))
        at_least = jnp.concatenate([more, one[None]])
        share_of = at_least - jnp.concatenate([jnp.zeros(1), more])
        first, second = shares.norms[index] if shares.norms else (one, one)
        beta = shares.beta[index].mean() if shares.beta else one
        for share, price in zip(share_of, by_tokens, strict=True):
            seconds = (
                price.products_s
                + expected_seconds([shares.alpha[index]], [price.attention], form)
                + first * price.norm1_s
                + second * price.norm2_s
                + (first + second - first * second) * price.gain_s
                + beta * price.activation_s
            )
            if index == len(prices) - 1:
                seconds += (shares.norms[-1][0] if shares.norms else one) * price.head_s
            total += share * seconds
    return total


def _price(table: LatencyTable, shared: Cost, own: Cost) -> LayerPrice:
    return LayerPrice(shared_s=table.seconds(shared), own_s=table.seconds(own))

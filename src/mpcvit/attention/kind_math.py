"""The hooks that the file of a kind fills in, and attention by any kind."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention.phases import Phases
from mpcvit.kinds.table import Kind

Queries = Float[Array, "*lead query head_dim"]
Keys = Float[Array, "*lead key head_dim"]
Values = Float[Array, "*lead key value_dim"]
Outputs = Float[Array, "*lead query value_dim"]
Scores = Float[Array, "*lead query key"]
Weights = Float[Array, "*lead query key"]
Drop = Callable[[Array], Array]
"""Dropout of attention weights, or None where nothing is dropped."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a kind may read beside its arrays: the model, and what the kind has learnt.

    In a lowered network, `learned` is what `KindMath.fold` made of it.
    """

    config: ModelConfig
    learned: Mapping[str, Any] = field(default_factory=dict)
    heads: tuple[int, ...] | None = None

    def of_heads(self, name: str) -> Array:
        """Return the rows of a learnt array for the heads that are computed."""
        array = self.learned[name]
        return array if self.heads is None else array[np.array(self.heads)]


def usual_scale(config: ModelConfig, tokens: int = 0) -> float:
    """Return 1 / sqrt(head_dim) of queries and keys, by which scores are multiplied."""
    return 1 / math.sqrt(config.qk_dim)


@dataclass(frozen=True, kw_only=True)
class KindMath:
    """What a kind computes, as it is trained and as it is lowered.

    As it is trained:
    weights:         attention weights from scores; None if it forms no scores
    linear:          outputs from q, k and v in an order that forms no scores. A kind with
                     weights too takes it where no weights are dropped.
    keys_and_values: what it makes of keys and values first
    learn:           its own parameters by name, made in the module that is given, for a
                     number of tokens

    As it is lowered:
    lowered:         the phases from scores to weights and a factor per row, or None;
                     None in its place if it forms no scores
    lowered_linear:  the phases that change queries and the blocks k' v before their product
    lowered_keys_and_values: as `keys_and_values`, for arrays [batch, token, width]
    score_scale:     the factor of q k' in a layer with a number of tokens. A head of one
                     kind has it in its weights.
    fold:            its learnt parameters as the lowered network reads them, by tokens too
    gain:            what outputs of a head are multiplied by. Only for a kind that does
                     not see the scale of v: another kind's rows in that head do.
    """

    weights: Callable[[Array, Context], Array] | None = None
    linear: Callable[[Array, Array, Array, Context], Array] | None = None
    keys_and_values: Callable[[Array, Array, Context], tuple[Array, Array]] | None = None
    learn: Callable[[nn.Module, ModelConfig, Any, int], dict[str, Any]] | None = None
    lowered: Callable[[Array, Context], Phases] | None = None
    lowered_linear: Callable[[Array, Array, Context], Phases] | None = None
    lowered_keys_and_values: Callable[[Array, Array, Context], tuple[Array, Array]] | None = None
    score_scale: Callable[[ModelConfig, int], float] = usual_scale
    fold: Callable[[ModelConfig, Any, int], dict[str, Any]] | None = None
    gain: Callable[[Any, int], float] | None = None


@cache
def math_of(kind: Kind) -> KindMath:
    """Return what a kind computes, from the file with its name."""
    return import_module(f"mpcvit.attention.{kind.name}").MATH


def attention_scores(q: Queries, k: Keys) -> Scores:
    """Compare every query with every key.

        s[i, j] = q[i] . k[j] / sqrt(head_dim)

    Secure cost: one product of matrices; the constant folds into the weights.
    """
    return (q / math.sqrt(q.shape[-1])) @ jnp.swapaxes(k, -1, -2)


def attend(
    kind: Kind, q: Queries, k: Keys, v: Values, context: Context, drop: Drop | None = None
) -> tuple[Outputs, Float[Array, "..."] | None]:
    """Run one kind; return its output, and its scores where it forms any."""
    own = math_of(kind)
    if own.linear is not None and (drop is None or own.weights is None):
        return own.linear(q, k, v, context), None
    assert own.weights is not None
    if own.keys_and_values is not None:
        k, v = own.keys_and_values(k, v, context)
    scores = attention_scores(q, k)
    weights = own.weights(scores, context)
    return (weights if drop is None else drop(weights)) @ v, scores

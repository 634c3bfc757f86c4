"""THE-X's estimate of softmax."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention.kind_math import Context, KindMath, Phases, Scores, Step, Weights

_LINEARS = ("hidden_0", "hidden_1", "output")


def the_x_row_sums(scores: Scores) -> Float[Array, "*lead query 1"]:
    """Return what the network reads of a row: its cubic estimate of sum exp(s).

        r[i] = sum_j relu((s[i, j] / 2 + 1)^3)

    >>> the_x_row_sums(jnp.array([[0.0, 2.0, -4.0]])).tolist()
    [[9.0]]
    """
    return jax.nn.relu((scores / 2 + 1) ** 3).sum(axis=-1, keepdims=True)


def the_x_weights(scores: Scores, inverse: Callable[[Array], Array]) -> Weights:
    """Multiply scores by a learnt inverse of a row sum.

        w[i, j] = s[i, j] T(sum_k relu((s[i, k] / 2 + 1)^3))

    T is a small learnt network with one input and one output per row.
    Range: unbounded. Keeps none of the properties for certain.
    Secure cost: per entry a cube, a comparison and a product; T per row.
    Source: docs/numerics.md#the-x
    """
    return scores * inverse(the_x_row_sums(scores))


class Inverse(nn.Module):
    """A small network T that learns to invert a row's sum.

        T(r) = mlp(r / n) / n,  two hidden layers with ReLU

    The sum r is about n for small scores and its inverse about 1/n, so both
    ends are scaled by the number of keys n to keep the network near one.
    """

    config: ModelConfig
    tokens: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, sums: Float[Array, "*lead query 1"]) -> Float[Array, "*lead query 1"]:
        hidden, init = self.config.the_x_hidden, nn.initializers.he_normal()
        x = (sums / self.tokens).reshape(-1, 1)  # one product, whatever the batch
        for name, size in zip(_LINEARS, (hidden, hidden, 1), strict=True):
            x = nn.Dense(size, dtype=self.dtype, kernel_init=init, name=name)(x)
            x = x if name == "output" else jax.nn.relu(x)
        return x.reshape(sums.shape) / self.tokens


def learn(module: nn.Module, config: ModelConfig, dtype: Any, tokens: int) -> dict[str, Any]:
    return {"inverse": Inverse(config, tokens, dtype=dtype, name="inverse", parent=module)}


def fold(config: ModelConfig, attention: Any, tokens: int) -> dict[str, Any]:
    """Return the network's weights with its divisions by n in them."""
    inverse = attention["inverse"]
    first, output = inverse["hidden_0"], inverse["output"]
    return {
        "inverse": {
            "hidden_0": {"kernel": first["kernel"] / tokens, "bias": first["bias"]},
            "hidden_1": inverse["hidden_1"],
            "output": {name: value / tokens for name, value in output.items()},
        }
    }


def lowered(scores: Array, context: Context) -> Phases:
    """Yield the cube; T of every row follows, with two comparisons of its own."""
    (cubes,) = yield Step("cube", [scores])
    x = cubes.sum(axis=-1).reshape(-1, 1)
    for name in _LINEARS:
        own = context.learned["inverse"][name]
        x = x @ own["kernel"] + own["bias"]
        x = x if name == "output" else jax.nn.relu(x)
    return scores, x.reshape(scores.shape[:2])


MATH = KindMath(
    weights=lambda scores, context: the_x_weights(scores, context.learned["inverse"]),
    learn=learn,
    fold=fold,
    lowered=lowered,
)

"""The attention kinds: one pure function each, with a card for its numerics.

Every kind maps queries, keys and values of some heads to their outputs, row by
row: output row i depends on query row i alone, so rows of different kinds mix
freely. Leading axes (batch, head) are whatever the caller has.

Scores are `s = q k' / sqrt(head_dim)`. The three marks of a card are softmax's
properties in the paper's table: a weight grows with its own score
(monotonicity), is not negative, and a row of weights sums to one.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpcvit.artifacts.architecture import AttentionKind
from mpcvit.artifacts.config import ModelConfig

Queries = Float[Array, "*lead query head_dim"]
Keys = Float[Array, "*lead key head_dim"]
Values = Float[Array, "*lead key head_dim"]
Outputs = Float[Array, "*lead query head_dim"]
Scores = Float[Array, "*lead query key"]
Weights = Float[Array, "*lead query key"]
Drop = Callable[[Array], Array]
"""Dropout of attention weights, or None where nothing is dropped."""


@dataclass(frozen=True, kw_only=True)
class Properties:
    """Which of softmax's three properties an attention kind keeps."""

    monotone: bool
    non_negative: bool
    normalised: bool


PROPERTIES: Mapping[AttentionKind, Properties] = {
    kind: Properties(monotone=monotone, non_negative=non_negative, normalised=normalised)
    for kind, monotone, non_negative, normalised in (
        (AttentionKind.SOFTMAX, True, True, True),
        (AttentionKind.LINFORMER, True, True, True),
        (AttentionKind.RELU, True, True, False),
        (AttentionKind.RELU6, True, True, False),
        (AttentionKind.SPARSEMAX, True, True, False),
        (AttentionKind.XNORM, True, False, False),
        (AttentionKind.SQUARE, False, True, False),
        (AttentionKind.QUAD2, False, True, True),
        (AttentionKind.SCALING, True, False, False),
        (AttentionKind.RELU_SOFTMAX, True, True, True),
        (AttentionKind.THE_X, False, False, False),
    )
}


def attention_scores(q: Queries, k: Keys) -> Scores:
    """Compare every query with every key.

        s[i, j] = q[i] . k[j] / sqrt(head_dim)

    Secure cost: one product of matrices; the constant folds into the weights.
    """
    return (q / math.sqrt(q.shape[-1])) @ jnp.swapaxes(k, -1, -2)


def softmax_weights(scores: Scores) -> Weights:
    """Turn scores into a distribution over keys.

        w[i, j] = exp(s[i, j] - m[i]) / sum_k exp(s[i, k] - m[i]),  m[i] = max_k s[i, k]

    Range: (0, 1). Keeps: monotonicity, non-negativity, normalisation.
    Secure cost: the dearest: max (a tree of comparisons), exp, reciprocal, product.
    Source: docs/numerics.md#softmax

    >>> softmax_weights(jnp.zeros((1, 4))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    return jax.nn.softmax(scores, axis=-1)


def relu_weights(scores: Scores) -> Weights:
    """Keep positive scores as they are.

        w[i, j] = relu(s[i, j])

    Range: [0, inf). Keeps: monotonicity, non-negativity.
    Secure cost: one comparison and one product per entry. Training tends to
    diverge, as the weights are unbounded and grow with the number of keys.
    Source: docs/numerics.md#relu

    >>> relu_weights(jnp.array([[3.0, -2.0]])).tolist()
    [[3.0, 0.0]]
    """
    return jax.nn.relu(scores)


def relu6_weights(scores: Scores) -> Weights:
    """Keep positive scores up to six.

        w[i, j] = min(relu(s[i, j]), 6)

    Range: [0, 6]. Keeps: monotonicity, non-negativity.
    Secure cost: two comparisons and two products per entry.
    Source: docs/numerics.md#relu6

    >>> relu6_weights(jnp.array([[3.0, -2.0, 9.0]])).tolist()
    [[3.0, 0.0, 6.0]]
    """
    return jax.nn.relu6(scores)


def sparsemax_weights(scores: Scores) -> Weights:
    """Ramp from zero to one between scores of -1 and 1.

        w[i, j] = clip((s[i, j] + 1) / 2, 0, 1)

    This is the elementwise form that the paper prints and benchmarks: the exact
    sparsemax of the pair (s, 0) at twice the slope. Sparsemax proper projects a
    whole row onto the simplex, which sorts the row and sums to one; this form
    looks at each score alone and does not.
    Range: [0, 1]. Keeps: monotonicity, non-negativity.
    Secure cost: two comparisons and two products per entry.
    Source: docs/numerics.md#sparsemax

    >>> sparsemax_weights(jnp.array([[-3.0, 0.0, 0.5, 2.0]])).tolist()
    [[0.0, 0.5, 0.75, 1.0]]
    """
    return jnp.clip((scores + 1) / 2, 0, 1)


def square_weights(scores: Scores) -> Weights:
    """Square each score.

        w[i, j] = s[i, j]^2

    Range: [0, inf). Keeps: non-negativity.
    Secure cost: one square per entry.
    Source: docs/numerics.md#square

    >>> square_weights(jnp.array([[3.0, -2.0]])).tolist()
    [[9.0, 4.0]]
    """
    return jnp.square(scores)


def quad2_weights(scores: Scores, offset: float, eps: float) -> Weights:
    """Replace softmax's exp by a parabola (2Quad, of MPCFormer).

        w[i, j] = (s[i, j] + c)^2 / (sum_k (s[i, k] + c)^2 + eps)

    Range: [0, 1]. Keeps: non-negativity, normalisation.
    Secure cost: a square per entry, a reciprocal per row, a product per entry.
    Fixed point: a row of scores near -c has a denominator near eps, and eps
    encodes to 0 below 2**-fraction_bits.
    Source: docs/numerics.md#quad2

    >>> quad2_weights(jnp.array([[1.0, -1.0, 0.0, -2.0]]), offset=0.0, eps=2.0).tolist()
    [[0.125, 0.125, 0.0, 0.5]]
    """
    squares = jnp.square(scores + offset)
    return squares / (squares.sum(axis=-1, keepdims=True) + eps)


def scaling_weights(scores: Scores) -> Weights:
    """Divide by the number of keys, and nothing else (ScaleAttn).

        w[i, j] = s[i, j] / n

    Range: unbounded. Keeps: monotonicity.
    Secure cost: none beyond the products around it; 1/n folds into weights.
    Source: docs/numerics.md#scaling

    >>> scaling_weights(jnp.array([[3.0, -1.0]])).tolist()
    [[1.5, -0.5]]
    """
    return scores / scores.shape[-1]


def scaling_attention(q: Queries, k: Keys, v: Values) -> Outputs:
    """Scaling attention in its linear order.

        y = (q / sqrt(n head_dim)) ((k / sqrt(n))' v)

    Equals `scaling_weights(scores) @ v`, with no score ever formed: work grows
    with n rather than n^2.
    Secure cost: two small products of matrices, no comparison.
    Source: docs/numerics.md#scaling
    """
    tokens, head_dim = k.shape[-2:]
    return (q / math.sqrt(tokens * head_dim)) @ (jnp.swapaxes(k / math.sqrt(tokens), -1, -2) @ v)


def relu_softmax_weights(scores: Scores, eps: float) -> Weights:
    """Turn scores into attention weights without exp (RSAttn).

        w[i, j] = relu(s[i, j]) / (sum_k relu(s[i, k]) + eps)

    Range: [0, 1]; with eps > 0, a row without positive scores becomes zeros.
    Keeps: monotonicity, non-negativity, normalisation (of rows with a positive
    score, up to eps).
    Secure cost: a comparison and two products per entry, a reciprocal per row;
    no max, no exp.
    Fixed point: eps >= 2**-fraction_bits, otherwise it may encode to 0.
    Source: docs/numerics.md#relu-softmax

    >>> relu_softmax_weights(jnp.array([[3.0, 1.0, -2.0]]), eps=0.0).tolist()
    [[0.75, 0.25, 0.0]]
    """
    positive = jax.nn.relu(scores)
    return positive / (positive.sum(axis=-1, keepdims=True) + eps)


def the_x_row_sums(scores: Scores) -> Float[Array, "*lead query 1"]:
    """What THE-X's network reads of a row: its cubic estimate of sum exp(s).

        r[i] = sum_j relu((s[i, j] / 2 + 1)^3)

    >>> the_x_row_sums(jnp.array([[0.0, 2.0, -4.0]])).tolist()
    [[9.0]]
    """
    return jax.nn.relu((scores / 2 + 1) ** 3).sum(axis=-1, keepdims=True)


def the_x_weights(scores: Scores, inverse: Callable[[Array], Array]) -> Weights:
    """THE-X's estimate of softmax: scores times a learned inverse of a row sum.

        w[i, j] = s[i, j] T(sum_k relu((s[i, k] / 2 + 1)^3))

    T is a small learned network with one input and one output per row.
    Range: unbounded. Keeps none of the properties for certain.
    Secure cost: per entry a cube, a comparison and a product; T per row.
    Source: docs/numerics.md#the-x
    """
    return scores * inverse(the_x_row_sums(scores))


def cross_normalise(
    x: Float[Array, "*lead row column"], gamma: Float[Array, "... 1 1"], eps: float
) -> Float[Array, "*lead row column"]:
    """Scale every row to length gamma (XNorm, of UFO-ViT).

        y[i] = gamma x[i] / sqrt(sum_j x[i, j]^2 + eps)

    Range: [-gamma, gamma]. An entry grows with itself (gamma > 0); neither
    sign nor sum is kept. The eps keeps the gradient of a zero row finite.
    Secure cost: a square per entry, rsqrt per row, a product per entry.
    Fixed point: eps >= 2**-fraction_bits, otherwise it may encode to 0.

    >>> y = cross_normalise(jnp.array([[3.0, 4.0]]), jnp.ones((1, 1)), eps=1e-12)
    >>> [round(x, 4) for x in y[0].tolist()]
    [0.6, 0.8]
    """
    return gamma * x * jax.lax.rsqrt(jnp.square(x).sum(axis=-1, keepdims=True) + eps)


def xnorm_attention(
    q: Queries, k: Keys, v: Values, gamma: Float[Array, "... 1 1"], eps: float
) -> Outputs:
    """Normalise queries and the key-value product instead of the scores.

        y = xn(q) xn(k' v),  xn as in `cross_normalise`

    Keeps (in the sense of `cross_normalise`): monotonicity.
    Secure cost: linear in the tokens, yet two rsqrt, each dear in rounds.
    Source: docs/numerics.md#xnorm
    """
    kv = jnp.swapaxes(k, -1, -2) @ v
    return cross_normalise(q, gamma, eps) @ cross_normalise(kv, gamma, eps)


@dataclass(frozen=True, kw_only=True)
class KindParameters:
    """What some kinds learn beyond q, k and v; None where no head needs it."""

    key_projection: Float[Array, "compressed key"] | None = None
    value_projection: Float[Array, "compressed key"] | None = None
    gamma: Float[Array, "head"] | None = None
    inverse: Callable[[Array], Array] | None = None


def attend(
    kind: AttentionKind,
    q: Queries,
    k: Keys,
    v: Values,
    *,
    config: ModelConfig,
    learned: KindParameters,
    drop: Drop | None = None,
) -> tuple[Outputs, Float[Array, "..."] | None]:
    """Run one kind; give its output, and its scores where it forms any.

    Linformer compresses keys and values first, `k -> E k`, `v -> F v`, and is
    softmax attention from there on. Dropout acts on attention weights, so
    scaling attention forms them while training and takes its linear order
    otherwise; XNorm has none.
    """
    if kind is AttentionKind.XNORM:
        assert learned.gamma is not None
        return xnorm_attention(q, k, v, learned.gamma[:, None, None], config.xnorm_eps), None
    if kind is AttentionKind.SCALING and drop is None:
        return scaling_attention(q, k, v), None
    if kind is AttentionKind.LINFORMER:
        assert learned.key_projection is not None
        assert learned.value_projection is not None
        k, v = learned.key_projection @ k, learned.value_projection @ v
    scores = attention_scores(q, k)
    weights = _weights(kind, scores, config, learned)
    return (weights if drop is None else drop(weights)) @ v, scores


def _weights(
    kind: AttentionKind, scores: Scores, config: ModelConfig, learned: KindParameters
) -> Weights:
    match kind:
        case AttentionKind.SOFTMAX | AttentionKind.LINFORMER:
            return softmax_weights(scores)
        case AttentionKind.RELU:
            return relu_weights(scores)
        case AttentionKind.RELU6:
            return relu6_weights(scores)
        case AttentionKind.SPARSEMAX:
            return sparsemax_weights(scores)
        case AttentionKind.SQUARE:
            return square_weights(scores)
        case AttentionKind.QUAD2:
            return quad2_weights(scores, config.quad2_offset, config.attention_eps)
        case AttentionKind.SCALING:
            return scaling_weights(scores)
        case AttentionKind.RELU_SOFTMAX:
            return relu_softmax_weights(scores, config.attention_eps)
        case AttentionKind.THE_X:
            assert learned.inverse is not None
            return the_x_weights(scores, learned.inverse)
    raise AssertionError(f"{kind} forms no attention weights")

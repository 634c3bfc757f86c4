"""All heads of a layer in two products, whatever their kinds."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from mpcvit.config import ModelConfig
from mpcvit.lowering.heads import HeadOrder
from mpcvit.lowering.plan import Function


def attend(
    q: Array,
    k: Array,
    v: Array,
    order: HeadOrder,
    config: ModelConfig,
    denominator: Function | None,
) -> Array:
    """Outputs [batch, query, width] of queries, keys and values [batch, token, width].

    Heads are in the order of their kinds, and scales are folded into the
    queries. A layer of scaling heads alone takes whichever order of its two
    products sends less; in a mixed layer they ride along with the scores of the
    others, in no exchange of their own.
    Secure cost: two products of matrices per image; where there are kinds that
    need them, one comparison with a product, one square, one `denominator` with
    a product. Rows are divided after the product with v: n head_dim numbers of a
    head rather than n n.
    """
    if order.is_linear and _linear_is_shorter(q.shape[1], k.shape[1], config):
        return _product(q, _own_blocks(_product(k, v, transposed=True), config))
    scores = _product(_spread(q, config), k.transpose(0, 2, 1))
    weights = _weights(scores, q.shape[1], order, config)
    outputs = _gather_blocks(_product(weights, v), config)
    if denominator is None:
        return outputs
    own = order.normalised
    sums = _rows(weights, own, q.shape[1]).sum(axis=-1)
    inverse = denominator(sums).reshape(q.shape[0], len(own), q.shape[1])
    before, middle, after = (
        outputs[..., start * config.head_dim : stop * config.head_dim]
        for start, stop in ((0, own.start), (own.start, own.stop), (own.stop, config.heads))
    )
    scale = jnp.repeat(inverse.transpose(0, 2, 1), config.head_dim, axis=-1)
    return jnp.concatenate([before, middle * scale, after], axis=-1)


def _linear_is_shorter(queries: int, keys: int, config: ModelConfig) -> bool:
    """Whether q (k' v) opens fewer numbers than (q k') v."""
    width = config.width
    linear = 2 * keys * width + queries * width + width * width
    quadratic = queries * config.heads * (width + keys) + 2 * keys * width
    return linear <= quadratic


def _product(a: Array, b: Array, *, transposed: bool = False) -> Array:
    """a b, or a' b, image by image; SPU takes them in turn, and one image as one product."""
    contracted = (1, 1) if transposed else (2, 1)
    if a.shape[0] == 1:
        axes = ((contracted[0] - 1,), (contracted[1] - 1,))
        return lax.dot_general(a[0], b[0], (axes, ((), ())))[None]
    axes = ((contracted[0],), (contracted[1],))
    return lax.dot_general(a, b, (axes, ((0,), (0,))))


def _head_of_column(config: ModelConfig) -> np.ndarray:
    return np.repeat(np.arange(config.heads), config.head_dim)


def _spread(q: Array, config: ModelConfig) -> Array:
    """Every head's queries as rows of their own, with zeros in the columns of other heads.

    One product with all keys then gives the scores of all heads. A public choice,
    not a multiplication: it costs neither an exchange nor a rounding.
    """
    batch, queries, width = q.shape
    own = np.arange(config.heads)[:, None, None] == _head_of_column(config)[None, None, :]
    own = np.broadcast_to(own, (batch, config.heads, queries, width))
    spread = jnp.where(own, jnp.broadcast_to(q[:, None], own.shape), 0.0)
    return spread.reshape(batch, config.heads * queries, width)


def _own_blocks(kv: Array, config: ModelConfig) -> Array:
    """k' v of every head with itself; what it has with others is dropped."""
    head = _head_of_column(config)
    own = np.broadcast_to(head[:, None] == head[None, :], kv.shape)
    return jnp.where(own, kv, 0.0)


def _gather_blocks(outputs: Array, config: ModelConfig) -> Array:
    """Of every head's rows the columns of its own values, side by side."""
    rows, size = outputs.shape[1] // config.heads, config.head_dim
    own = [
        outputs[:, head * rows : (head + 1) * rows, head * size : (head + 1) * size]
        for head in range(config.heads)
    ]
    return jnp.concatenate(own, axis=-1)


def _rows(scores: Array, places: range, queries: int) -> Array:
    return scores[:, places.start * queries : places.stop * queries]


def _weights(scores: Array, queries: int, order: HeadOrder, config: ModelConfig) -> Array:
    rectified, squared = order.rectified, order.squared
    parts = []
    if rectified:
        parts.append(jax.nn.relu(_rows(scores, rectified, queries)))
    if squared:
        own = _rows(scores, squared, queries)
        offset = [config.quad2_offset if place in order.normalised else 0.0 for place in squared]
        own = own + np.repeat(np.asarray(offset, np.float32), queries)[None, :, None]
        parts.append(own * own)
    rest = range(len(rectified) + len(squared), len(order.heads))
    if rest:
        parts.append(_rows(scores, rest, queries))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)

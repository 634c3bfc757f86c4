"""All heads of a layer in two products, whatever their kinds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from mpcvit.artifacts.architecture import AttentionKind, HeadChoice
from mpcvit.artifacts.config import ModelConfig
from mpcvit.lowering.heads import (
    EXPONENTIAL,
    NORMALISED,
    Part,
    folded_scale,
    score_scale,
    split_heads,
)
from mpcvit.lowering.inverse_root import invert_roots
from mpcvit.lowering.plan import LayerFunctions
from mpcvit.lowering.steep_chain import rectified_cube
from mpcvit.model.gather import gather, merge

Scores = dict[AttentionKind, Array]
# w = relu(s + first) - relu(s + second), of scores at each kind's own scale
_RAMPS = {
    AttentionKind.RELU: (0.0,),
    AttentionKind.RELU_SOFTMAX: (0.0,),
    AttentionKind.RELU6: (0.0, -6.0),
    AttentionKind.SPARSEMAX: (0.5, -0.5),
}

# What takes as long as an exchange over a WAN, in a 128-bit ring: numbers opened, at 44 MB/s,
# and multiplications of a product of matrices, by one core.
_NUMBERS_PER_EXCHANGE = 55_000
_PRODUCTS_PER_EXCHANGE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """The attention of one layer.

    `learned` are the parameters of kinds that have some. Kinds that form scores
    share the exchanges of whatever they have in common, down to single rows of
    a head. XNorm takes its linear order, and so does a layer of scaling heads
    alone where that sends less; beside others, scaling heads ride along with
    their scores, in no exchange of their own.
    Secure cost: two products of matrices for every few heads; then once each, where
    some kind needs it, a comparison with a product, a square, and `denominator`
    with a product.
    Softmax adds its `exponential`, its `temper` and a product; Linformer one
    product more; THE-X its `cube` and its network; XNorm two products of
    matrices, a square, a product and its inverse roots. Rows are divided
    after the product with v: n head_dim numbers of a head rather than n n.
    """

    config: ModelConfig
    heads: Sequence[HeadChoice]
    functions: LayerFunctions
    learned: Mapping[str, Any]

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        """Outputs [batch, query, width] of [batch, token, width], scales folded into q."""
        parts = split_heads(self.heads, q.shape[1])
        outputs = self._attend(parts, q, k, v)
        return jnp.concatenate(
            [
                merge(
                    [output for part, output in outputs.items() if part.head == head],
                    [part.tokens for part in outputs if part.head == head],
                    axis=1,
                )
                for head in range(self.config.heads)
            ],
            axis=-1,
        )

    def _attend(self, parts: Sequence[Part], q: Array, k: Array, v: Array) -> dict[Part, Array]:
        linear = [part for part in parts if part.kind is AttentionKind.XNORM]
        scored = [part for part in parts if part.kind is not AttentionKind.XNORM]
        if self._is_linear(scored, keys=k.shape[1]):
            linear, scored = [*linear, *scored], []
        outputs: dict[Part, Array] = {}
        if linear:
            outputs |= self._attend_linearly(linear, q, k, v)
        if scored:
            outputs |= self._attend_by_scores(scored, q, k, v)
        return outputs

    def _is_linear(self, parts: Sequence[Part], *, keys: int) -> bool:
        """Whether only scaling rows are left, and q (k' v) opens fewer numbers than (q k') v."""
        rows, size = sum(len(part.tokens) for part in parts), self.config.head_dim
        return (
            bool(parts)
            and all(part.kind is AttentionKind.SCALING for part in parts)
            and len(_heads(parts)) * size * size <= rows * keys
        )

    def _queries(self, part: Part, q: Array) -> Array:
        """All queries of a part's head, at the scale of its kind."""
        own = _columns(q, [part.head], self.config.head_dim)
        wanted = score_scale(self.config, part.kind)
        folded = folded_scale(self.config, self.heads[part.head])
        return own if wanted == folded else own * (wanted / folded)

    def _attend_linearly(
        self, parts: Sequence[Part], q: Array, k: Array, v: Array
    ) -> dict[Part, Array]:
        """q (k' v), head by head in one product; XNorm, which comes first, scales both before."""
        heads, size = _heads(parts), self.config.head_dim
        kv = _product(*(_columns(x, heads, size) for x in (k, v)), transposed=True)
        rows = jnp.stack([self._queries(part, q) for part in parts], axis=1)
        places = [heads.index(part.head) * size for part in parts]
        blocks = jnp.stack([kv[:, i : i + size, i : i + size] for i in places], axis=1)
        crossed = sum(part.kind is AttentionKind.XNORM for part in parts)
        if crossed:
            scaled_rows, scaled_blocks = self._cross_normalise(
                rows[:, :crossed], blocks[:, :crossed]
            )
            rows = jnp.concatenate([scaled_rows, rows[:, crossed:]], axis=1)
            blocks = jnp.concatenate([scaled_blocks, blocks[:, crossed:]], axis=1)
        outputs = _product_by_head(rows, blocks)
        return {part: gather(outputs[:, i], part.tokens, axis=1) for i, part in enumerate(parts)}

    def _cross_normalise(self, rows: Array, blocks: Array) -> list[Array]:
        """Every row of both at length one; gamma is in the weights around."""
        query_length, product_length = self.functions.query_length, self.functions.product_length
        assert query_length is not None
        assert product_length is not None
        squares = [x.sum(axis=-1) for x in _together(_square, [rows, blocks])]
        inverses = invert_roots([query_length, product_length], squares)
        return _scale_rows([rows, blocks], inverses)

    def _attend_by_scores(
        self, parts: Sequence[Part], q: Array, k: Array, v: Array
    ) -> dict[Part, Array]:
        """f(q k') v, with all but the products done for all heads at once."""
        heads, size = _heads(parts), self.config.head_dim
        keys, values, own_keys = self._keys_and_values(
            parts, _columns(k, heads, size), _columns(v, heads, size)
        )
        rows = sum(len(part.tokens) for part in parts)
        together = self._heads_together(rows, keys.shape[1])
        groups = [heads[start : start + together] for start in range(0, len(heads), together)]
        scored: dict[Part, Array] = {}
        for group in groups:
            scored |= self._scores(parts, group, q, _places(keys, heads, group, size))
        own_scores = {
            kind: jnp.concatenate([scored[part] for part in parts if part.kind is kind], axis=1)
            for kind in _rows_by_kind(parts)
        }
        own_scores = {kind: own[:, :, own_keys[kind]] for kind, own in own_scores.items()}
        weights = self._weights(own_scores)
        factors = self._factors(own_scores, weights)
        padded = {
            kind: _pad(own, own_keys[kind].start, keys.shape[1]) for kind, own in weights.items()
        }
        whole = jnp.concatenate(list(padded.values()), axis=1)
        found: dict[Part, Array] = {}
        for group in groups:
            found |= self._outputs(parts, group, whole, _places(values, heads, group, size))
        found = {part: found[part] for part in parts}
        return _divide(found, factors) if factors else found

    def _heads_together(self, rows: int, keys: int) -> int:
        """How many heads share a product: many save exchanges, few save computing and bytes."""
        heads, size = self.config.heads, self.config.head_dim

        def worth(count: int) -> float:
            """In exchanges."""
            numbers = rows * count * size
            return (
                2 * math.ceil(heads / count)
                + numbers / _NUMBERS_PER_EXCHANGE
                + 2 * numbers * keys / _PRODUCTS_PER_EXCHANGE
            )

        return min(range(1, heads + 1), key=worth)

    def _scores(
        self, parts: Sequence[Part], group: Sequence[int], q: Array, keys: Array
    ) -> dict[Part, Array]:
        """q k' of a group's heads: their queries as rows of their own, with zeros beside them.

        One product with all keys then gives the scores of the group. The zeros are
        public, so they cost neither an exchange nor a rounding.
        """
        own, size = [part for part in parts if part.head in group], self.config.head_dim
        queries = [
            _pad(gather(self._queries(part, q), part.tokens, axis=1), place, keys.shape[2])
            for part in own
            for place in [group.index(part.head) * size]
        ]
        scores = _product(jnp.concatenate(queries, axis=1), keys.transpose(0, 2, 1))
        ends = np.cumsum([len(part.tokens) for part in own])[:-1]
        return dict(zip(own, jnp.split(scores, ends, axis=1), strict=True))

    def _outputs(
        self, parts: Sequence[Part], group: Sequence[int], weights: Array, values: Array
    ) -> dict[Part, Array]:
        """Of every part in a group its weights times its head's values."""
        own, size, stop = {}, self.config.head_dim, 0
        for part in parts:
            start, stop = stop, stop + len(part.tokens)
            if part.head in group:
                own[part] = weights[:, start:stop]
        outputs = _product(jnp.concatenate(list(own.values()), axis=1), values)
        ends = np.cumsum([len(part.tokens) for part in own])[:-1]
        return {
            part: rows[..., place : place + size]
            for part, rows in zip(own, jnp.split(outputs, ends, axis=1), strict=True)
            for place in [group.index(part.head) * size]
        }

    def _keys_and_values(
        self, parts: Sequence[Part], k: Array, v: Array
    ) -> tuple[Array, Array, dict[AttentionKind, slice]]:
        """Keys and values of all kinds, and which of them are each kind's own.

        Linformer's are E k and F v, of all images in one product.
        """
        kinds = dict.fromkeys(part.kind for part in parts)
        batch, tokens, width = k.shape
        if AttentionKind.LINFORMER not in kinds:
            return k, v, dict.fromkeys(kinds, slice(0, tokens))
        projection, both = self.learned["projection"], jnp.concatenate([k, v], axis=-1)
        count = projection.shape[0] // 2
        projected = projection @ both.transpose(1, 0, 2).reshape(tokens, -1)
        projected = projected.reshape(2 * count, batch, 2 * width).transpose(1, 0, 2)
        keys, values = projected[:, :count, :width], projected[:, count:, width:]
        if len(kinds) == 1:
            return keys, values, {AttentionKind.LINFORMER: slice(0, count)}
        own_keys = dict.fromkeys(kinds, slice(0, tokens))
        own_keys[AttentionKind.LINFORMER] = slice(tokens, tokens + count)
        return (
            jnp.concatenate([k, keys], axis=1),
            jnp.concatenate([v, values], axis=1),
            own_keys,
        )

    def _weights(self, scores: Scores) -> Scores:
        """Weights before any division; scaling's and THE-X's are the scores."""
        weights = dict(scores)
        ramps = [(kind, offset) for kind in scores for offset in _RAMPS.get(kind, ())]
        if ramps:
            positive = _together(jax.nn.relu, [scores[kind] + offset for kind, offset in ramps])
            for (kind, _), own in zip(ramps, positive, strict=True):
                weights[kind] = own if weights[kind] is scores[kind] else weights[kind] - own
        roots = self._softmax_roots(scores)
        if AttentionKind.QUAD2 in scores:
            roots[AttentionKind.QUAD2] = scores[AttentionKind.QUAD2] + self.config.quad2_offset
        if AttentionKind.SQUARE in scores:
            roots[AttentionKind.SQUARE] = scores[AttentionKind.SQUARE]
        if roots:
            weights |= dict(zip(roots, _together(_square, list(roots.values())), strict=True))
        return weights

    def _softmax_roots(self, scores: Scores) -> Scores:
        """Rows whose squares are proportional to exp(2 s), and sum to between 1 and n.

            b = exp(s - mean s),  w = (b / (sqrt(n) mean b))^2

        A row of b has a mean of at least one, and its squares after that crude division
        a sum that is bounded whatever the image: so neither needs a maximum.
        """
        own = [kind for kind in EXPONENTIAL if kind in scores]
        if not own:
            return {}
        exponential, temper = self.functions.exponential, self.functions.temper
        assert exponential is not None
        assert temper is not None
        powers = _together(exponential, [scores[kind] - _mean(scores[kind]) for kind in own])
        levels = _together(temper, [_mean(power)[..., 0] for power in powers])
        levels = [
            level * (1 / math.sqrt(power.shape[-1]))
            for level, power in zip(levels, powers, strict=True)
        ]
        return dict(zip(own, _scale_rows(powers, levels), strict=True))

    def _factors(self, scores: Scores, weights: Scores) -> Scores:
        """What the rows of kinds that divide are multiplied by."""
        factors: Scores = {}
        if normalised := [kind for kind in weights if kind in NORMALISED]:
            denominator = self.functions.denominator
            assert denominator is not None
            sums = [weights[kind].sum(axis=-1) for kind in normalised]
            factors |= dict(zip(normalised, _together(denominator, sums), strict=True))
        if AttentionKind.THE_X in scores:
            factors[AttentionKind.THE_X] = self._inverse_of_the_x(scores[AttentionKind.THE_X])
        return factors

    def _inverse_of_the_x(self, scores: Array) -> Array:
        """T of every row; its divisions by n are in its weights."""
        cube = self.functions.cube or rectified_cube
        x = cube(scores).sum(axis=-1).reshape(-1, 1)
        for name in ("hidden_0", "hidden_1", "output"):
            own = self.learned["inverse"][name]
            x = x @ own["kernel"] + own["bias"]
            x = x if name == "output" else jax.nn.relu(x)
        return x.reshape(scores.shape[:2])


def _divide(outputs: dict[Part, Array], factors: Scores) -> dict[Part, Array]:
    """Rows of outputs times the factors of their kinds, in one product."""
    divided = [part for part in outputs if part.kind in factors]
    rows = jnp.concatenate([outputs[part] for part in divided], axis=1)
    own = jnp.concatenate([factors[kind] for kind in _rows_by_kind(divided)], axis=1)
    (rows,) = _scale_rows([rows], [own])
    ends = np.cumsum([len(part.tokens) for part in divided])[:-1]
    return outputs | dict(zip(divided, jnp.split(rows, ends, axis=1), strict=True))


def _heads(parts: Sequence[Part]) -> list[int]:
    return sorted({part.head for part in parts})


def _rows_by_kind(parts: Sequence[Part]) -> dict[AttentionKind, slice]:
    """Where the rows of each kind stand, when those of all parts are put in a line."""
    rows: dict[AttentionKind, slice] = {}
    stop = 0
    for part in parts:
        start = rows[part.kind].start if part.kind in rows else stop
        stop += len(part.tokens)
        rows[part.kind] = slice(start, stop)
    return rows


def _together(function: Callable[..., Array], *operands: Sequence[Array]) -> list[Array]:
    """An elementwise function of several arrays at once, in the exchanges of one.

    Images stay apart, for those who watch what the function is given.
    """
    if len(operands[0]) == 1:
        return [function(*(arrays[0] for arrays in operands))]
    rows = [[array.reshape(array.shape[0], -1) for array in arrays] for arrays in operands]
    flat = [jnp.concatenate(arrays, axis=1) for arrays in rows]
    ends = np.cumsum([array.shape[1] for array in rows[0]])[:-1]
    pieces = jnp.split(function(*flat), ends, axis=1)
    return [piece.reshape(array.shape) for piece, array in zip(pieces, operands[0], strict=True)]


def _square(x: Array) -> Array:
    return x * x


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


def _scale_rows(arrays: Sequence[Array], factors: Sequence[Array]) -> list[Array]:
    """Every row of each array times its own number."""
    whole = [
        jnp.broadcast_to(factor[..., None], array.shape)
        for factor, array in zip(factors, arrays, strict=True)
    ]
    return _together(jnp.multiply, arrays, whole)


def _product(a: Array, b: Array, *, transposed: bool = False) -> Array:
    """a b, or a' b, image by image; SPU takes them in turn, and one image as one product."""
    contracted = (1, 1) if transposed else (2, 1)
    if a.shape[0] == 1:
        axes = ((contracted[0] - 1,), (contracted[1] - 1,))
        return lax.dot_general(a[0], b[0], (axes, ((), ())))[None]
    axes = ((contracted[0],), (contracted[1],))
    return lax.dot_general(a, b, (axes, ((0,), (0,))))


def _product_by_head(rows: Array, blocks: Array) -> Array:
    """rows[h] blocks[h] for all heads in one product, in the form that opens fewer numbers.

    Either the blocks stand beside each other on a diagonal, or the rows do.
    """
    batch, heads, queries, size = rows.shape
    if queries <= size:
        spread = [_pad(rows[:, head], head * size, heads * size) for head in range(heads)]
        stacked = blocks.reshape(batch, heads * size, size)
        return _product(jnp.concatenate(spread, axis=1), stacked).reshape(rows.shape)
    beside = rows.transpose(0, 2, 1, 3).reshape(batch, queries, heads * size)
    diagonal = [_pad(blocks[:, head], head * size, heads * size) for head in range(heads)]
    outputs = _product(beside, jnp.concatenate(diagonal, axis=1))
    return outputs.reshape(batch, queries, heads, size).transpose(0, 2, 1, 3)


def _places(x: Array, heads: Sequence[int], group: Sequence[int], size: int) -> Array:
    """The columns of a group, in an array that has those of `heads`."""
    return _columns(x, [heads.index(head) for head in group], size)


def _columns(x: Array, heads: Sequence[int], size: int) -> Array:
    """The columns of some heads."""
    own = [head * size + column for head in heads for column in range(size)]
    return gather(x, own, axis=2)


def _pad(x: Array, before: int, width: int) -> Array:
    """Columns of zeros around; a public choice, not a multiplication."""
    after = width - before - x.shape[-1]
    return x if not before and not after else jnp.pad(x, ((0, 0), (0, 0), (before, after)))

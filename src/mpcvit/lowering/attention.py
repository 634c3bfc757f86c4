"""All heads of a layer in two products, whatever their kinds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import HeadChoice
from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention.kind_math import Context, KindMath, math_of
from mpcvit.attention.phases import Phases, multiply, run_phases
from mpcvit.kinds.table import Kind
from mpcvit.lowering.approximations import rectified_cube
from mpcvit.lowering.heads import Part, folded_scale, split_heads
from mpcvit.lowering.out_of_range import invert_watched
from mpcvit.lowering.sites import LayerFunctions
from mpcvit.model.gather import gather, merge

# What takes as long as an exchange over a WAN, in a 128-bit ring: numbers opened, at 44 MB/s,
# and multiplications of a product of matrices, by one core.
NUMBERS_PER_EXCHANGE = 55_000
_PRODUCTS_PER_EXCHANGE = 2_000_000


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """The attention of one layer.

    `learned` are the parameters of kinds that have some. Kinds that form scores
    share the exchanges of all phases that they have in common, down to single
    rows of a head. The others take their linear order. Kinds that can do both
    take it if no other forms scores and q (k' v) sends less; beside others, they
    take part in the scores.
    Secure cost: two products of matrices for every few heads, two more for the
    linear order, each phase once, and what kinds do to keys and values. Rows are
    divided after the product with v: n head_dim numbers of a head rather than n n.
    """

    config: ModelConfig
    heads: Sequence[HeadChoice]
    tokens: int
    functions: LayerFunctions
    learned: Mapping[str, Any]

    def __call__(self, q: Array, k: Array, v: Array) -> Array:
        """Return outputs [batch, query, width] of [batch, token, width], scales folded into q."""
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

    @property
    def _context(self) -> Context:
        return Context(config=self.config, learned=self.learned)

    def _size(self, x: Array) -> int:
        """Return how many columns a head has."""
        return x.shape[-1] // self.config.heads

    def _attend(self, parts: Sequence[Part], q: Array, k: Array, v: Array) -> dict[Part, Array]:
        linear = [part for part in parts if _math(part).lowered is None]
        scored = [part for part in parts if _math(part).lowered is not None]
        if self._is_linear(scored, k, v):
            linear, scored = [*linear, *scored], []
        outputs: dict[Part, Array] = {}
        if linear:
            outputs |= self._attend_linearly(linear, q, k, v)
        if scored:
            outputs |= self._attend_by_scores(scored, q, k, v)
        return outputs

    def _is_linear(self, parts: Sequence[Part], k: Array, v: Array) -> bool:
        """Say whether all parts can compute q (k' v), and it opens fewer numbers than (q k') v."""
        rows, block = sum(len(part.tokens) for part in parts), self._size(k) * self._size(v)
        return (
            bool(parts)
            and all(_math(part).lowered_linear is not None for part in parts)
            and len(_heads(parts)) * block <= rows * k.shape[1]
        )

    def _run(self, phases: dict[Kind, Phases]) -> dict[Kind, Any]:
        exact = {"cube": rectified_cube}  # a comparison, where no approximation is close enough
        return run_phases(phases, {**exact, **self.functions}, invert_watched)

    def _queries(self, part: Part, q: Array) -> Array:
        """Return all queries of a part's head, at the scale of its kind."""
        own = _columns(q, [part.head], self._size(q))
        wanted = _math(part).score_scale(self.config, self.tokens)
        folded = folded_scale(self.config, self.heads[part.head], self.tokens)
        return own if wanted == folded else own * (wanted / folded)

    def _attend_linearly(
        self, parts: Sequence[Part], q: Array, k: Array, v: Array
    ) -> dict[Part, Array]:
        """Return q (k' v), head by head in one product, after what kinds do to both factors."""
        heads, height, width = _heads(parts), self._size(k), self._size(v)
        kv = _product(_columns(k, heads, height), _columns(v, heads, width), transposed=True)
        rows = jnp.stack([self._queries(part, q) for part in parts], axis=1)
        blocks = [
            kv[:, place * height : (place + 1) * height, place * width : (place + 1) * width]
            for place in (heads.index(part.head) for part in parts)
        ]
        by_kind, stacked = _slices(parts, lambda part: 1), jnp.stack(blocks, axis=1)
        results = self._run(
            {
                kind: math(rows[:, own], stacked[:, own], self._context)
                for kind, own in by_kind.items()
                if (math := math_of(kind).lowered_linear) is not None
            }
        ).values()
        outputs = _product_by_head(
            jnp.concatenate([rows for rows, _ in results], axis=1),
            jnp.concatenate([blocks for _, blocks in results], axis=1),
        )
        return {part: gather(outputs[:, i], part.tokens, axis=1) for i, part in enumerate(parts)}

    def _attend_by_scores(
        self, parts: Sequence[Part], q: Array, k: Array, v: Array
    ) -> dict[Part, Array]:
        """Return f(q k') v, with all but the products done for all heads at once."""
        heads, height, width = _heads(parts), self._size(k), self._size(v)
        by_kind = _slices(parts, lambda part: len(part.tokens))
        keys, values, own_keys = self._keys_and_values(
            list(by_kind), _columns(k, heads, height), _columns(v, heads, width)
        )
        count = self._heads_together(
            sum(len(part.tokens) for part in parts), keys.shape[1], height, width
        )
        groups = [heads[start : start + count] for start in range(0, len(heads), count)]
        scored: dict[Part, Array] = {}
        for group in groups:
            scored |= self._scores(parts, group, q, _places(keys, heads, group, height))
        phases = {}
        for kind in by_kind:
            rows = jnp.concatenate([scored[part] for part in parts if part.kind is kind], axis=1)
            lowered = math_of(kind).lowered
            assert lowered is not None
            phases[kind] = lowered(rows[:, :, own_keys[kind]], self._context)
        results = self._run(phases)
        whole = jnp.concatenate(
            [
                _pad(weights, own_keys[kind].start, keys.shape[1])
                for kind, (weights, _) in results.items()
            ],
            axis=1,
        )
        outputs: dict[Part, Array] = {}
        for group in groups:
            outputs |= self._outputs(parts, group, whole, _places(values, heads, group, width))
        factors = {kind: factor for kind, (_, factor) in results.items() if factor is not None}
        return _divide({part: outputs[part] for part in parts}, factors)

    def _heads_together(self, rows: int, keys: int, height: int, width: int) -> int:
        """Return how many heads share a product: many save exchanges, few computing and bytes."""
        heads = self.config.heads

        def worth(count: int) -> float:
            """Return the cost in exchanges."""
            return (
                2 * math.ceil(heads / count)
                + rows * count * height / NUMBERS_PER_EXCHANGE
                + rows * count * (height + width) * keys / _PRODUCTS_PER_EXCHANGE
            )

        return min(range(1, heads + 1), key=worth)

    def _scores(
        self, parts: Sequence[Part], group: Sequence[int], q: Array, keys: Array
    ) -> dict[Part, Array]:
        """Return q k' of a group's heads: their queries in rows of their own, zeros beside them.

        One product with all keys then gives the scores of the group. The zeros are
        public, so they cost neither an exchange nor a rounding.
        """
        own, size = [part for part in parts if part.head in group], self._size(q)
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
        """Return for every part of a group its weights times its head's values."""
        own, size, stop = {}, values.shape[-1] // len(group), 0
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
        self, kinds: Sequence[Kind], k: Array, v: Array
    ) -> tuple[Array, Array, dict[Kind, slice]]:
        """Return keys and values of all kinds side by side, and which of them each kind reads."""
        own = {
            kind: make(k, v, self._context)
            for kind in kinds
            if (make := math_of(kind).lowered_keys_and_values) is not None
        }
        pairs = [*([(k, v)] if len(own) < len(kinds) else []), *own.values()]
        own_keys = dict.fromkeys(kinds, slice(0, k.shape[1]))
        stop = k.shape[1] if len(own) < len(kinds) else 0
        for kind, (keys, _) in own.items():
            own_keys[kind] = slice(stop, stop + keys.shape[1])
            stop += keys.shape[1]
        keys, values = (jnp.concatenate(arrays, axis=1) for arrays in zip(*pairs, strict=True))
        return keys, values, own_keys


def _math(part: Part) -> KindMath:
    return math_of(part.kind)


def _divide(outputs: dict[Part, Array], factors: Mapping[Kind, Array]) -> dict[Part, Array]:
    """Return rows of outputs times the factors of their kinds, in one product."""
    if not factors:
        return outputs
    divided = [part for part in outputs if part.kind in factors]
    rows = jnp.concatenate([outputs[part] for part in divided], axis=1)
    by_row = jnp.concatenate(list(factors.values()), axis=1)
    (rows,) = multiply([(rows, by_row[..., None])])
    ends = np.cumsum([len(part.tokens) for part in divided])[:-1]
    return outputs | dict(zip(divided, jnp.split(rows, ends, axis=1), strict=True))


def _heads(parts: Sequence[Part]) -> list[int]:
    return sorted({part.head for part in parts})


def _slices(parts: Sequence[Part], size: Callable[[Part], int]) -> dict[Kind, slice]:
    """Return where each kind stands when parts, which are in the order of kinds, are in a line."""
    slices: dict[Kind, slice] = {}
    stop = 0
    for part in parts:
        start = slices[part.kind].start if part.kind in slices else stop
        stop += size(part)
        slices[part.kind] = slice(start, stop)
    return slices


def _product(a: Array, b: Array, *, transposed: bool = False) -> Array:
    """Return a b, or a' b, of each image. SPU takes one product after the other."""
    if transposed:
        a = a.transpose(0, 2, 1)
    batch, rows, inner = a.shape
    count = _images_together(batch, rows, inner, b.shape[2])
    products = [
        _product_together(a[start : start + count], b[start : start + count])
        for start in range(0, batch, count)
    ]
    return jnp.concatenate(products) if len(products) > 1 else products[0]


def _images_together(batch: int, rows: int, inner: int, columns: int) -> int:
    """Return how many images share a product: many save exchanges, few computing and dealing."""

    def worth(count: int) -> float:
        """Return the cost in exchanges. The numbers opened are always the same."""
        return (
            math.ceil(batch / count)
            + batch * count * rows * columns / NUMBERS_PER_EXCHANGE
            + batch * count * rows * inner * columns / _PRODUCTS_PER_EXCHANGE
        )

    return min(range(1, batch + 1), key=worth)


def _product_together(a: Array, b: Array) -> Array:
    """Return a b of some images by one product of all rows with all columns.

    What belongs to two images is computed and thrown away. It is opened to nobody.
    """
    count, rows, inner = a.shape
    if count == 1:
        return (a[0] @ b[0])[None]
    beside = b.transpose(1, 0, 2).reshape(inner, -1)
    blocks = (a.reshape(count * rows, inner) @ beside).reshape(count, rows, count, -1)
    return jnp.stack([blocks[image, :, image] for image in range(count)])


def _product_by_head(rows: Array, blocks: Array) -> Array:
    """Return rows[h] blocks[h] for all heads in one product, in the form that opens less.

    Either the blocks stand beside each other on a diagonal, or the rows do.
    """
    batch, heads, queries, height = rows.shape
    width = blocks.shape[-1]
    if queries <= width:
        spread = [_pad(rows[:, head], head * height, heads * height) for head in range(heads)]
        stacked = blocks.reshape(batch, heads * height, width)
        outputs = _product(jnp.concatenate(spread, axis=1), stacked)
        return outputs.reshape(batch, heads, queries, width)
    beside = rows.transpose(0, 2, 1, 3).reshape(batch, queries, heads * height)
    diagonal = [_pad(blocks[:, head], head * width, heads * width) for head in range(heads)]
    outputs = _product(beside, jnp.concatenate(diagonal, axis=1))
    return outputs.reshape(batch, queries, heads, width).transpose(0, 2, 1, 3)


def _places(x: Array, heads: Sequence[int], group: Sequence[int], size: int) -> Array:
    """Return the columns of a group, in an array that has those of `heads`."""
    return _columns(x, [heads.index(head) for head in group], size)


def _columns(x: Array, heads: Sequence[int], size: int) -> Array:
    """Return the columns of some heads."""
    own = [head * size + column for head in heads for column in range(size)]
    return gather(x, own, axis=2)


def _pad(x: Array, before: int, width: int) -> Array:
    """Return x with columns of zeros around: a public choice, not a multiplication."""
    after = width - before - x.shape[-1]
    return x if not before and not after else jnp.pad(x, ((0, 0), (0, 0), (before, after)))

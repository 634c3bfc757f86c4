"""All heads of a layer in two products, whatever their kinds, and of several images at once."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import HeadChoice, kinds_of
from mpcvit.artifacts.config import ModelConfig
from mpcvit.attention.kind_math import (
    Context,
    KindMath,
    Phases,
    gather,
    math_of,
    merge,
    multiply,
    run_phases,
    usual_scale,
)
from mpcvit.kinds.table import Kind
from mpcvit.lowering.approximations import rectified_cube
from mpcvit.lowering.out_of_range import invert_watched
from mpcvit.lowering.sites import LayerFunctions

# What takes as long as an exchange over a WAN, in a 128-bit ring: numbers opened, at 44 MB/s;
# numbers that both parties draw, and a dealer deals ahead of time; and multiplications of a
# product of matrices, by one core.
NUMBERS_PER_EXCHANGE = 55_000
_DEALT_PER_EXCHANGE = 220_000
PRODUCTS_PER_EXCHANGE = 5_000_000


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one head that one kind computes."""

    kind: Kind
    head: int
    tokens: tuple[int, ...]


def split_heads(choices: Sequence[HeadChoice], queries: int) -> tuple[Part, ...]:
    """Return the first `queries` rows of all heads, those of a kind together.

    >>> from mpcvit.kinds.table import RELU_SOFTMAX as r, SCALING as s
    >>> [(part.head, part.tokens) for part in split_heads([s, (r, s, r)], queries=3)]
    [(1, (0, 2)), (0, (0, 1, 2)), (1, (1,))]
    """
    tokens_of: dict[tuple[Kind, int], list[int]] = {}
    for head, choice in enumerate(choices):
        kinds = choice if isinstance(choice, tuple) else (choice,) * queries
        for token, kind in enumerate(kinds[:queries]):
            tokens_of.setdefault((kind, head), []).append(token)
    return tuple(
        Part(kind=kind, head=head, tokens=tuple(tokens))
        for (kind, head), tokens in sorted(
            tokens_of.items(), key=lambda item: (item[0][0].name, item[0][1])
        )
    )


def folded_scale(config: ModelConfig, choice: HeadChoice, tokens: int) -> float:
    """Return the part of a kind's `score_scale` that a head's query weights take.

    A head of one kind takes all of it, and a mixed head what is common to all kinds.
    """
    kinds = kinds_of(choice)
    return math_of(*kinds).score_scale(config, tokens) if len(kinds) == 1 else usual_scale(config)


@dataclass(frozen=True, kw_only=True)
class AttentionLayer:
    """The attention of one layer.

    `learned` are the parameters of kinds that have some. Kinds that form scores
    share the exchanges of all phases that they have in common, down to single
    rows of a head. The others take their linear order. Kinds that can do both
    take it if no other forms scores and q (k' v) sends less; beside others, they
    take part in the scores.
    Secure cost: two products of matrices that heads share, two more for the linear
    order, each phase once, and what kinds do to keys and values. Rows are divided
    after the product with v: n head_dim numbers of a head rather than n n.
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
        """Return q (k' v), after what kinds do to both factors."""
        heads = _heads(parts)
        keys, values = (_columns_by_head(x, heads, self._size(x)) for x in (k, v))
        blocks = _products(keys.transpose(0, 1, 3, 2), values)
        rows = jnp.stack([self._queries(part, q) for part in parts], axis=1)
        stacked = gather(blocks, [heads.index(part.head) for part in parts], axis=1)
        by_kind = _slices(parts, lambda part: 1)
        results = self._run(
            {
                kind: math(rows[:, own], stacked[:, own], self._context)
                for kind, own in by_kind.items()
                if (math := math_of(kind).lowered_linear) is not None
            }
        ).values()
        outputs = _products(
            jnp.concatenate([rows for rows, _ in results], axis=1),
            jnp.concatenate([blocks for _, blocks in results], axis=1),
        )
        return {part: gather(outputs[:, i], part.tokens, axis=1) for i, part in enumerate(parts)}

    def _attend_by_scores(
        self, parts: Sequence[Part], q: Array, k: Array, v: Array
    ) -> dict[Part, Array]:
        """Return f(q k') v, with all but the products done for all heads at once."""
        heads = _heads(parts)
        by_kind = _slices(parts, lambda part: len(part.tokens))
        keys, values, own_keys = self._keys_and_values(
            list(by_kind),
            _columns(k, heads, self._size(k)),
            _columns(v, heads, self._size(v)),
        )
        queries = {
            part: gather(self._queries(part, q), part.tokens, axis=1)
            for part in sorted(parts, key=lambda part: heads.index(part.head))
        }
        keys = _columns_by_head(keys, range(len(heads)), self._size(k)).transpose(0, 1, 3, 2)
        scored = _products_of_parts(heads, queries, keys)
        phases = {}
        for kind in by_kind:
            rows = jnp.concatenate([scored[part] for part in parts if part.kind is kind], axis=1)
            lowered = math_of(kind).lowered
            assert lowered is not None
            phases[kind] = lowered(rows[:, :, own_keys[kind]], self._context)
        results = self._run(phases)
        weights: dict[Part, Array] = {}
        for kind, (whole, _) in results.items():
            own = [part for part in parts if part.kind is kind]
            padded = _pad(whole, own_keys[kind].start, keys.shape[3])
            ends = np.cumsum([len(part.tokens) for part in own])[:-1]
            weights |= zip(own, jnp.split(padded, ends, axis=1), strict=True)
        weights = {part: weights[part] for part in queries}
        values = _columns_by_head(values, range(len(heads)), self._size(v))
        outputs = _products_of_parts(heads, weights, values)
        factors = {kind: factor for kind, (_, factor) in results.items() if factor is not None}
        return _divide({part: outputs[part] for part in parts}, factors)

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


def _products(a: Array, b: Array) -> Array:
    """Return the product of matrices for each image and head."""
    batch, heads = a.shape[:2]
    pairs = [(a[image, head], b[image, head]) for image in range(batch) for head in range(heads)]
    whole = products(pairs)
    return jnp.stack(whole).reshape(batch, heads, a.shape[2], b.shape[3])


def _products_of_parts(
    heads: Sequence[int], rows: Mapping[Part, Array], b: Array
) -> dict[Part, Array]:
    """Return for every part its rows times the matrix of its head, `b` by image and head.

    The parts of a head follow each other.
    """
    batch = b.shape[0]
    own = {head: [part for part in rows if part.head == head] for head in heads}
    beside = {head: jnp.concatenate([rows[part] for part in own[head]], axis=1) for head in heads}
    pairs = [
        (beside[head][image], b[image, place])
        for image in range(batch)
        for place, head in enumerate(heads)
    ]
    whole = products(pairs)
    outputs: dict[Part, Array] = {}
    for place, head in enumerate(heads):
        ends = np.cumsum([len(part.tokens) for part in own[head]])[:-1]
        of_head = jnp.stack(whole[place :: len(heads)])
        outputs |= zip(own[head], jnp.split(of_head, ends, axis=1), strict=True)
    return outputs


def _columns_by_head(x: Array, heads: Sequence[int], size: int) -> Array:
    """Return the columns of some heads as matrices of their own."""
    batch, tokens, _ = x.shape
    return _columns(x, heads, size).reshape(batch, tokens, -1, size).transpose(0, 2, 1, 3)


def _columns(x: Array, heads: Sequence[int], size: int) -> Array:
    """Return the columns of some heads."""
    own = [head * size + column for head in heads for column in range(size)]
    return gather(x, own, axis=2)


def _pad(x: Array, before: int, width: int) -> Array:
    """Return x with columns of zeros around: a public choice, not a multiplication."""
    after = width - before - x.shape[-1]
    return x if not before and not after else jnp.pad(x, ((0, 0), (0, 0), (before, after)))


def products(pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Return a b for each pair of matrices, of any number of rows, else of equal shapes.

    SPU takes an exchange for each product of two matrices. Several pairs share one: the
    product of all rows with all columns. What belongs to two pairs is computed and thrown
    away. It is opened to nobody.
    """
    rows = sum(a.shape[0] for a, _ in pairs) / len(pairs)
    count = together(len(pairs), rows, *pairs[0][1].shape)
    groups = (pairs[start : start + count] for start in range(0, len(pairs), count))
    return [product for group in groups for product in _multiply(group)]


def together(pairs: int, rows: float, inner: int, columns: int) -> int:
    """Return how many pairs share a product: many save exchanges, few computing and dealing.

    The numbers opened are always the same.
    """

    def worth(count: int) -> float:
        """Return the cost in exchanges."""
        results = pairs * count * rows * columns
        return (
            math.ceil(pairs / count)
            + results / _DEALT_PER_EXCHANGE
            + results * inner / PRODUCTS_PER_EXCHANGE
        )

    return min(range(1, pairs + 1), key=worth)


def _multiply(pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    if len(pairs) == 1:
        ((a, b),) = pairs
        return [a @ b]
    columns = pairs[0][1].shape[1]
    whole = jnp.concatenate([a for a, _ in pairs]) @ jnp.concatenate([b for _, b in pairs], axis=1)
    stops = np.cumsum([a.shape[0] for a, _ in pairs])
    return [
        whole[stop - a.shape[0] : stop, place * columns : (place + 1) * columns]
        for place, ((a, _), stop) in enumerate(zip(pairs, stops, strict=True))
    ]

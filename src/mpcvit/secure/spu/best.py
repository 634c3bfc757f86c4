"""The largest of secret values, by comparing all pairs at once: counted, or masked.

That takes as many exchanges as two comparisons, for any number of values. Other questions of
the kind "is it negative?" are part of the same comparisons.

Counted answers are bits. Best ones open as 0 where they are yes, and as noise where they are
no. There, a yes is a row of secret bits with none set. Each bit is multiplied with a number of
its own that is uniform in the ring and known to nobody, and the row's products are added. The
sum is 0 if no bit is set. Otherwise it is uniform and independent of everything else, so it
does not say how many bits are set, or where. That takes one exchange, where counting the bits
and comparing takes nine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# what saves fewer comparisons than this is not worth a second level's exchanges on a WAN
_WORTH_A_LEVEL = 170_000


@dataclass(frozen=True, kw_only=True)
class Best:
    """Secret answers: counted, 1 for yes and 0 for no, or masked, 0 for yes."""

    chosen: Array  # [batch, n]: is a value among the best?
    leads: Array | None  # [batch, n]: is it the best, and exceeds all others by the lead?
    is_kept: Array | None  # [batch, 1]: is no check negative?


def choose_best(
    values: Array,
    count: int,
    *,
    checks: Array | None = None,
    lead: float | None = None,
    groups: int | None = None,
) -> Best:
    """Find the `count` largest of each row; of equal ones the first.

        wins_i = #{j: v_i > v_j, or v_i = v_j and i < j},   chosen_i = wins_i >= n - count

    All pairs are compared in one batch, wins are counted by public sums, and one
    more comparison ends it. Many values are first compared within `groups`, whose
    best meet. `checks` are values that must not be negative; `lead` is by how much a
    single best must exceed all others. Both ride along with these comparisons.
    Secure cost: n (n - 1) / 2 comparisons, three times as many with a lead, and n; in
    SEMI2K 17 exchanges, and 20 more for groups.
    """
    own = _split(values, count, groups)
    groups = len(own)
    level = _compare(values, own, count, checks, lead)
    is_kept = None if level.is_kept is None else level.is_kept.astype(jnp.int32)
    if groups == 1:
        leads = None if level.leads is None else level.leads.astype(jnp.int32)
        return Best(chosen=level.among[:, 0].astype(jnp.int32), leads=leads, is_kept=is_kept)
    # sums of the best one, two, ... of each group; their differences are the best in order
    kept = jnp.where(level.among, values[:, None], jnp.zeros_like(values[:, None]))
    finalists = _differences(_sum_groups(kept, own)).transpose(0, 2, 1)  # [batch, group, rank]
    last = _compare(
        finalists.reshape(len(values), -1), [np.arange(groups * count)], count, None, lead
    )
    of_finalists = last.among[:, 0].astype(jnp.int32).reshape(-1, groups, count).transpose(0, 2, 1)
    in_groups = _differences(level.among.astype(jnp.int32))
    if level.leads is not None and last.leads is not None:  # of a single best
        last_leads, own_leads = (x[:, None].astype(jnp.int32) for x in (last.leads, level.leads))
        of_finalists = jnp.concatenate([of_finalists, last_leads], axis=1)
        in_groups = jnp.concatenate([in_groups, own_leads], axis=1)
    group_of = np.repeat(np.arange(groups), [len(part) for part in own])
    both = jnp.take(of_finalists, group_of, axis=2) * in_groups
    return Best(
        chosen=both[:, :count].sum(axis=1),
        leads=None if lead is None else both[:, count],
        is_kept=is_kept,
    )


def is_kept(checks: Array) -> Array:
    """Say of each row whether none of its values is negative; two comparisons."""
    return (_negatives(_signs(checks)) >= 0).astype(jnp.int32)


@dataclass(frozen=True, kw_only=True)
class _Level:
    """The secret bits that one level of pairs tells of values in groups."""

    among: Array  # [batch, rank, n]: is a value among the best 1, 2, ... of its group?
    leads: Array | None  # [batch, n]: is it the best of its group, by the lead?
    is_kept: Array | None  # [batch, 1]


def _compare(
    values: Array,
    groups: Sequence[np.ndarray],
    count: int,
    checks: Array | None,
    lead: float | None,
) -> _Level:
    size = values.shape[1]
    asked, pairs = _questions(values, groups, checks, lead)
    signs = _signs(asked)
    sizes = np.concatenate([np.full(len(part), len(part), np.int32) for part in groups])
    balance = _balance(signs[:, :pairs], -signs[:, :pairs], groups)  # 2 wins - (size - 1)
    ranks = [count] if len(groups) == 1 else range(1, count + 1)
    asked = [balance - (sizes + 1 - 2 * rank) for rank in ranks]
    if lead is not None:
        strict = _balance(signs[:, pairs : 2 * pairs], signs[:, 2 * pairs : 3 * pairs], groups)
        asked.append(strict - (sizes - 1))
    if checks is not None:
        asked.append(_negatives(signs[:, signs.shape[1] - checks.shape[1] :]))
    bits = jnp.concatenate(asked, axis=1) >= 0
    known = len(ranks) * size
    return _Level(
        among=bits[:, :known].reshape(-1, len(ranks), size),
        leads=None if lead is None else bits[:, known : known + size],
        is_kept=None if checks is None else bits[:, -1:],
    )


def _signs(x: Array) -> Array:
    """1 where a value is not negative, and else -1: one conversion for all that reads it."""
    return 2 * (x >= 0).astype(jnp.int32) - 1


def _negatives(signs: Array) -> Array:
    """Return zero for each row without a -1, and less for others."""
    return signs.sum(axis=1, keepdims=True) - signs.shape[1]


def _balance(of_first: Array, of_second: Array, groups: Sequence[np.ndarray]) -> Array:
    """Sum each value's pairs: with one sign where it is first, the other where it is second."""
    return _lay_out(of_first, of_second, groups).sum(axis=-1)


def _sum_groups(x: Array, groups: Sequence[np.ndarray]) -> Array:
    """[batch, rank, group] of [batch, rank, n]."""
    sums = [x[:, :, part[0] : part[-1] + 1].sum(axis=2, keepdims=True) for part in groups]
    return jnp.concatenate(sums, axis=2)


def _differences(x: Array) -> Array:
    """Return differences along the ranks; the first is kept."""
    return jnp.concatenate([x[:, :1], x[:, 1:] - x[:, :-1]], axis=1)


def mask_best(
    values: Array,
    noise: Array,
    *,
    checks: Array | None = None,
    lead: float | None = None,
    groups: int | None = None,
) -> Best:
    """Find the largest of each row; of equal ones the first.

        chosen_i = sum_j r_ij [j beats i],   r uniform in the ring

    All pairs are compared in one batch. Many values are first compared within `groups`.
    Their best meet, and a value is chosen if it is the best of its group, and its group's
    best is the best of all. `checks` and `lead` are those of `choose_best`. `noise` has as
    many numbers for each row as `count_noise` returns.
    Secure cost: n (n - 1) / 2 comparisons, three times as many with a lead, and n (n - 1)
    selections; in SEMI2K 9 exchanges, and about 13 more for groups.
    """
    own = _split(values, 1, groups)
    sums = iter(_mask(_rows_of_best(values, own, checks, lead), noise))
    if len(own) == 1:
        return Best(
            chosen=next(sums),
            leads=None if lead is None else next(sums),
            is_kept=None if checks is None else next(sums),
        )
    group_of = np.repeat(np.arange(len(own)), [len(part) for part in own])

    def both() -> Array:
        """Add what a group's best lost to what its members did."""
        of_group = jnp.take(next(sums), group_of, axis=1)
        return of_group + next(sums)

    return Best(
        chosen=both(),
        is_kept=None if checks is None else next(sums),
        leads=None if lead is None else both(),
    )


def count_noise(
    values: Any, *, checks: Any = None, lead: float | None = None, groups: int | None = None
) -> int:
    """Return how many numbers `mask_best` takes for each row; arrays may be shapes alone."""
    own = _split(values, 1, groups)
    rows = jax.eval_shape(
        lambda values, checks: _rows_of_best(values, own, checks, lead), values, checks
    )
    return sum(map(_size, rows))


def mask_checks(checks: Array, noise: Array) -> Array:
    """Return a sum [batch, 1] to open, 0 if no value of a row is negative; one comparison."""
    (is_kept,) = _mask([(checks < 0)[:, None]], noise)
    return is_kept


def _rows_of_best(
    values: Array, groups: Sequence[np.ndarray], checks: Array | None, lead: float | None
) -> list[Array]:
    """Return bits [batch, n, bit]; none is set where the answer is yes."""
    beaten, trailing, failed = _compare_masked(values, groups, checks, lead)
    kept = [] if failed is None else [failed[:, None]]
    if len(groups) == 1:
        return [beaten, *([] if trailing is None else [trailing]), *kept]
    is_first = _none(beaten)
    best = jnp.where(is_first, values, jnp.zeros_like(values))
    finalists = jnp.concatenate(
        [best[:, part[0] : part[-1] + 1].sum(axis=1, keepdims=True) for part in groups], axis=1
    )
    out, behind, _ = _compare_masked(finalists, [np.arange(len(groups))], None, lead)
    rows = [out, ~is_first[..., None], *kept]
    if trailing is not None and behind is not None:
        rows += [behind, ~_none(trailing)[..., None]]
    return rows


def _compare_masked(
    values: Array, groups: Sequence[np.ndarray], checks: Array | None, lead: float | None
) -> tuple[Array, Array | None, Array | None]:
    """Return for each value by whom of its group it is beaten, or not exceeded by the lead.

    Both are bits [batch, n, others]. The third are bits [batch, check] of negative checks.
    """
    asked, pairs = _questions(values, groups, checks, lead)
    bits = asked < 0
    of_first = bits[:, :pairs]
    beaten = _lay_out(of_first, ~of_first, groups)
    trailing = None
    if lead is not None:
        trailing = _lay_out(bits[:, pairs : 2 * pairs], bits[:, 2 * pairs : 3 * pairs], groups)
    return beaten, trailing, None if checks is None else bits[:, bits.shape[1] - checks.shape[1] :]


def _mask(rows: Sequence[Array], noise: Array) -> list[Array]:
    """Return for each array of bits [batch, n, bit] its masked sums [batch, n]."""
    batch = rows[0].shape[0]
    sizes = [_size(bits) for bits in rows]
    assert noise.shape[1] == sum(sizes), "noise is used once"
    flat = jnp.concatenate([bits.reshape(batch, -1) for bits in rows], axis=1)
    products = jnp.where(flat, noise, jnp.zeros_like(noise))
    pieces = jnp.split(products, np.cumsum(sizes)[:-1], axis=1)
    return [piece.reshape(bits.shape).sum(axis=2) for piece, bits in zip(pieces, rows, strict=True)]


def _size(bits: Any) -> int:
    """Return how many bits a row of the batch has."""
    return math.prod(bits.shape[1:])


def _none(bits: Array) -> Array:
    """Say whether no bit along the last axis is set, by a tree of products of bits."""
    clear = ~bits
    while (count := clear.shape[-1]) > 1:
        half = count // 2
        both = clear[..., :half] & clear[..., half : 2 * half]
        clear = jnp.concatenate([both, clear[..., 2 * half :]], axis=-1)
    return clear[..., 0]


def _questions(
    values: Array, groups: Sequence[np.ndarray], checks: Array | None, lead: float | None
) -> tuple[Array, int]:
    """Return what is to be compared with zero, side by side, and the number of pairs.

    First are the differences of pairs, with a lead also the differences either way less the
    lead. Last are the checks.
    """
    first, second = _pairs_of(groups)
    difference = jnp.take(values, first, axis=1) - jnp.take(values, second, axis=1)
    asked = [difference]
    if lead is not None:
        asked += [difference - lead, -difference - lead]
    if checks is not None:
        asked.append(checks)
    return jnp.concatenate(asked, axis=1), len(first)


def _pairs_of(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the second of every pair.

    >>> [side.tolist() for side in _pairs_of([np.array([0, 1, 2]), np.array([3, 4])])]
    [[0, 0, 1, 3], [1, 2, 2, 4]]
    """
    places = [np.triu_indices(len(part), 1) for part in groups]
    first, second = (
        np.concatenate([part[pair[side]] for part, pair in zip(groups, places, strict=True)])
        for side in (0, 1)
    )
    return first, second


def _lay_out(of_first: Array, of_second: Array, groups: Sequence[np.ndarray]) -> Array:
    """Return for each value what its pairs say: of the one array as first, of the other as second.

    The result is [batch, value, other]. In a smaller group, zeros or False are in place of the
    others that are missing.
    """
    nothing = jnp.zeros_like(of_first[:, :1])
    both = jnp.concatenate([of_first, of_second, nothing], axis=1)
    pairs, most = of_first.shape[1], max(len(part) for part in groups)
    tables, start = [], 0
    for part in groups:
        first, second = np.triu_indices(len(part), 1)
        table = np.full((len(part), most - 1), 2 * pairs)
        table[first, second - 1] = start + np.arange(len(first))
        table[second, first] = pairs + start + np.arange(len(first))
        tables.append(table)
        start += len(first)
    table = np.concatenate(tables)
    return jnp.take(both, table.ravel(), axis=1).reshape(-1, *table.shape)


def _split(values: Any, count: int, groups: int | None) -> list[np.ndarray]:
    """Return the places of values by group, of the number of groups that compares least."""
    size = values.shape[1]
    groups = _groups_of(size, count) if groups is None else groups
    return [np.asarray(part) for part in np.array_split(np.arange(size), groups)]


def _groups_of(size: int, count: int) -> int:
    """Return how many groups compare least to find the `count` best.

    It is one if a second level costs more than it saves.
    """

    def compared(groups: int) -> int:
        own, finalists = math.ceil(size / groups), groups * count
        return groups * own * (own - 1) // 2 + finalists * (finalists - 1) // 2

    options = range(2, size // (2 * count) + 1)
    best = min(options, key=compared, default=1)
    return best if size * (size - 1) // 2 - compared(best) > _WORTH_A_LEVEL else 1

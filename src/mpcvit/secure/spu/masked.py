"""Answers that open as 0 where they are yes, and as noise where they are no.

A yes is a row of secret bits with none set. Each bit is multiplied with a number of its own
that is uniform in the ring and known to nobody, and the row's products are added. The sum is 0
if no bit is set. Otherwise it is uniform and independent of everything else, so it does not
say how many bits are set, or where. That takes one exchange, where counting the bits and
comparing takes nine.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.secure.spu.pairs import groups_of, lay_out, pairs_of

Noise = Callable[[int], Array]
"""Gives an array [batch, count] of secret numbers, each to be used once."""


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Sums to open: 0 for yes."""

    chosen: Array  # [batch, n]: is a value the best?
    leads: Array | None  # [batch, n]: is it the best, and exceeds all others by the lead?
    is_kept: Array | None  # [batch, 1]: is no check negative?


def mask_best(
    values: Array,
    noise: Noise,
    *,
    checks: Array | None = None,
    lead: float | None = None,
    groups: int | None = None,
) -> Masked:
    """Find the largest of each row; of equal ones the first.

        chosen_i = sum_j r_ij [j beats i],   r uniform in the ring

    All pairs are compared in one batch. Many values are first compared within `groups`.
    Their best meet, and a value is chosen if it is the best of its group, and its group's
    best is the best of all. `checks` and `lead` are those of `choose_best`.
    Secure cost: n (n - 1) / 2 comparisons, three times as many with a lead, and n (n - 1)
    selections; in SEMI2K 9 exchanges, and about 13 more for groups.
    """
    size = values.shape[1]
    groups = groups_of(size, 1) if groups is None else groups
    own = [np.asarray(part) for part in np.array_split(np.arange(size), groups)]
    beaten, trailing, failed = _compare(values, own, lead, checks)
    kept = [] if failed is None else [failed[:, None]]
    if groups == 1:
        rows = [beaten, *([] if trailing is None else [trailing]), *kept]
        sums = iter(_mask(rows, noise))
        return Masked(
            chosen=next(sums),
            leads=None if trailing is None else next(sums),
            is_kept=next(sums) if kept else None,
        )
    is_first = _none(beaten)
    best = jnp.where(is_first, values, jnp.zeros_like(values))
    finalists = jnp.concatenate(
        [best[:, part[0] : part[-1] + 1].sum(axis=1, keepdims=True) for part in own], axis=1
    )
    out, behind, _ = _compare(finalists, [np.arange(groups)], lead, None)
    rows = [out, ~is_first[..., None], *kept]
    if trailing is not None and behind is not None:
        rows += [behind, ~_none(trailing)[..., None]]
    sums = iter(_mask(rows, noise))
    group_of = np.repeat(np.arange(groups), [len(part) for part in own])

    def both() -> Array:
        """Add what a group's best lost to what its members did."""
        of_group = jnp.take(next(sums), group_of, axis=1)
        return of_group + next(sums)

    return Masked(
        chosen=both(),
        is_kept=next(sums) if kept else None,
        leads=None if lead is None else both(),
    )


def mask_checks(checks: Array, noise: Noise) -> Array:
    """Return a sum [batch, 1] to open, 0 if no value of a row is negative; one comparison."""
    (is_kept,) = _mask([(checks < 0)[:, None]], noise)
    return is_kept


def _compare(
    values: Array, groups: Sequence[np.ndarray], lead: float | None, checks: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """Return for each value by whom of its group it is beaten, or not exceeded by the lead.

    Both are bits [batch, n, others]. The third are bits [batch, check] of negative checks.
    """
    first, second = pairs_of(groups)
    pairs = len(first)
    difference = jnp.take(values, first, axis=1) - jnp.take(values, second, axis=1)
    asked = [difference]
    if lead is not None:
        asked += [difference - lead, -difference - lead]
    if checks is not None:
        asked.append(checks)
    bits = jnp.concatenate(asked, axis=1) < 0
    of_first = bits[:, :pairs]
    beaten = lay_out(of_first, ~of_first, groups)
    trailing = None
    if lead is not None:
        trailing = lay_out(bits[:, pairs : 2 * pairs], bits[:, 2 * pairs : 3 * pairs], groups)
    return beaten, trailing, None if checks is None else bits[:, bits.shape[1] - checks.shape[1] :]


def _mask(rows: Sequence[Array], noise: Noise) -> list[Array]:
    """Return for each array of bits [batch, n, bit] its masked sums [batch, n]."""
    batch = rows[0].shape[0]
    sizes = [math.prod(bits.shape[1:]) for bits in rows]
    flat = jnp.concatenate([bits.reshape(batch, -1) for bits in rows], axis=1)
    numbers = noise(sum(sizes))
    products = jnp.where(flat, numbers, jnp.zeros_like(numbers))
    pieces = jnp.split(products, np.cumsum(sizes)[:-1], axis=1)
    return [piece.reshape(bits.shape).sum(axis=2) for piece, bits in zip(pieces, rows, strict=True)]


def _none(bits: Array) -> Array:
    """Say whether no bit along the last axis is set, by a tree of products of bits."""
    clear = ~bits
    while (count := clear.shape[-1]) > 1:
        half = count // 2
        both = clear[..., :half] & clear[..., half : 2 * half]
        clear = jnp.concatenate([both, clear[..., 2 * half :]], axis=-1)
    return clear[..., 0]

"""From secret logits to what may be opened of them, and back from what was opened.

The largest values are found by comparing all pairs at once. That takes as many exchanges as
two comparisons, for any number of values. Other questions of the kind "is it negative?" are
part of the same comparisons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.record import Reveal
from mpcvit.errors import UserError
from mpcvit.lowering.out_of_range import Trust
from mpcvit.secure.errors import PartyError
from mpcvit.secure.result import BatchAnswers
from mpcvit.secure.spu.masked import Noise, mask_best, mask_checks
from mpcvit.secure.spu.pairs import groups_of, lay_out, pairs_of

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How the answer of one network is made, and read again.

    The opened array has a row for each image: `values` where they are revealed; for each
    class whether it is chosen, by 1 or 0; the same again, if it is so by a clear lead;
    and whether everything stayed in bounds. Each only where there is something to say.
    If `masked`, yes is 0 and no is noise, which takes half of the exchanges; the best of
    several are still counted.
    """

    reveal: Reveal
    classes: int
    trust: Trust
    masked: bool = False

    def __post_init__(self) -> None:
        if self.reveal is Reveal.TOP5 and self.classes <= TOP:
            raise UserError(
                f"the best {TOP} of {self.classes} classes say nothing; reveal the class instead"
            )

    @property
    def is_needed(self) -> bool:
        """Whether anything has to be computed on the logits before they are opened."""
        return self.reveal is not Reveal.LOGITS or self.trust.guard

    @property
    def takes_noise(self) -> bool:
        """Whether the last argument is noise, of the size that `count_noise` returns."""
        return self.masked and self.is_needed and self.reveal is not Reveal.TOP5

    @property
    def _has_values(self) -> bool:
        return self.reveal in (Reveal.ROUNDED, Reveal.LOGITS)

    @property
    def _chooses(self) -> bool:
        return self.reveal is not Reveal.LOGITS

    @property
    def _vouches(self) -> bool:
        """Whether a bit says if all stayed in bounds; bounds of known logits need none."""
        return self.trust.guard or (not self._has_values and self.trust.bound > 0)

    @property
    def _tells_close(self) -> bool:
        """Of a set without an order the data owner asks for no lead."""
        return self.reveal in (Reveal.CLASS, Reveal.ROUNDED) and self.trust.doubt > 0

    def __call__(self, logits: Array, *given: Array) -> Array:
        """Return the array to open.

        `given` holds what must not be negative, by stage, and then the noise if any is taken.
        """
        if not self.takes_noise:
            return self._open(logits, given, None)
        *slack, noise = given

        def take(count: int) -> Array:
            assert noise.shape[1] == count, "noise is used once"
            return noise

        return self._open(logits, slack, take)

    def count_noise(self, logits: Any, *slack: Any) -> int:
        """Return how many numbers of noise an image takes; arguments may be shapes alone."""
        counts: list[int] = []

        def take(count: int) -> Array:
            counts.append(count)
            return jnp.zeros((logits.shape[0], count))

        jax.eval_shape(lambda logits, *slack: self._open(logits, slack, take), logits, *slack)
        return sum(counts)

    def _open(self, logits: Array, slack: Sequence[Array], noise: Noise | None) -> Array:
        watched = list(slack)
        if not self._has_values and self.trust.bound > 0:
            watched += [self.trust.bound - logits, logits + self.trust.bound]
        checks = jnp.concatenate(watched, axis=1) if watched else None
        if self._chooses:
            count = TOP if self.reveal is Reveal.TOP5 else 1
            lead = self.trust.doubt if self._tells_close else None
            if noise is None:
                found = choose_best(logits, count, checks=checks, lead=lead)
            else:
                found = mask_best(logits, noise, checks=checks, lead=lead)
            known = (found.chosen, found.leads, found.is_kept)
            parts = [part for part in known if part is not None]
        else:
            if checks is None:
                raise UserError("its plan has a guard, and nothing to watch")
            parts = [is_kept(checks) if noise is None else mask_checks(checks, noise)]
        if self._has_values:
            rounded = jnp.floor(logits + 0.5) if self.reveal is Reveal.ROUNDED else logits
            parts = [rounded, *(part.astype(jnp.float32) for part in parts)]
        return jnp.concatenate(parts, axis=1)

    def read(self, opened: np.ndarray) -> BatchAnswers:
        """Return what an opened array says; refuse one that no honest run gives."""
        columns, place = np.asarray(opened), 0

        def take(count: int) -> np.ndarray:
            nonlocal place
            place += count
            return columns[:, place - count : place]

        values = take(self.classes).astype(np.float32) if self._has_values else None
        if self._chooses:
            chosen = self._bits(take(self.classes))
        else:
            assert values is not None
            chosen = np.arange(self.classes) == values.argmax(axis=1)[:, None]
        close, trusted = np.zeros(len(columns), bool), np.ones(len(columns), bool)
        if self._tells_close:
            close = ~self._bits(take(self.classes)).any(axis=1)
        if self._vouches:
            trusted = self._bits(take(1))[:, 0]
        if values is not None and self.trust.bound > 0:
            # a rounded value may be half a unit further out
            room = 0.5 if self.reveal is Reveal.ROUNDED else 0.0
            within = np.abs(values).max(axis=1) <= self.trust.bound + room
            trusted &= within  # also refuses what is no number
        if self.reveal is Reveal.LOGITS and self.trust.doubt > 0:
            assert values is not None
            best = np.sort(values, axis=1)[:, -2:]
            close = best[:, -1] - best[:, 0] < self.trust.doubt if self.classes > 1 else close
        expected = TOP if self.reveal is Reveal.TOP5 else 1
        if (chosen.sum(axis=1)[trusted] != expected).any():
            raise PartyError("the opened answer is none: the parties did not compute the same")
        return BatchAnswers(
            values=None if values is None else _rows(values),
            chosen=_rows(chosen),
            trusted=tuple(trusted.tolist()),
            close=tuple(close.tolist()),
        )

    def _bits(self, columns: np.ndarray) -> np.ndarray:
        if self.takes_noise:
            return columns == 0
        if not np.isin(columns, (0, 1)).all():
            raise PartyError("the opened answer is none: the parties did not compute the same")
        return columns.astype(bool)


def _rows(array: np.ndarray) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, array.tolist()))


@dataclass(frozen=True, kw_only=True)
class Best:
    """Secret answers, 1 for yes and 0 for no."""

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
    size = values.shape[1]
    groups = groups_of(size, count) if groups is None else groups
    own = [np.asarray(part) for part in np.array_split(np.arange(size), groups)]
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
    """What one level of pairs tells of values in groups, as secret bits."""

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
    first, second = pairs_of(groups)
    pairs, size = len(first), values.shape[1]
    difference = jnp.take(values, first, axis=1) - jnp.take(values, second, axis=1)
    asked = [difference]
    if lead is not None:
        asked += [difference - lead, -difference - lead]
    if checks is not None:
        asked.append(checks)
    signs = _signs(jnp.concatenate(asked, axis=1))
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
    """Zero for each row without a -1, and below zero for others."""
    return signs.sum(axis=1, keepdims=True) - signs.shape[1]


def _balance(of_first: Array, of_second: Array, groups: Sequence[np.ndarray]) -> Array:
    """For each value the sum over its pairs: of the one sign as first, of the other as second."""
    return lay_out(of_first, of_second, groups).sum(axis=-1)


def _sum_groups(x: Array, groups: Sequence[np.ndarray]) -> Array:
    """[batch, rank, group] of [batch, rank, n]."""
    sums = [x[:, :, part[0] : part[-1] + 1].sum(axis=2, keepdims=True) for part in groups]
    return jnp.concatenate(sums, axis=2)


def _differences(x: Array) -> Array:
    """Along the ranks; the first is kept."""
    return jnp.concatenate([x[:, :1], x[:, 1:] - x[:, :-1]], axis=1)

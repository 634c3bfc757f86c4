"""From secret logits to what may be opened of them, and back from what was opened."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.record import Reveal
from mpcvit.errors import UserError
from mpcvit.lowering.plan import Trust
from mpcvit.secure.errors import PartyError
from mpcvit.secure.result import Answers
from mpcvit.secure.spu.best import choose_best, is_kept

TOP = 5


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How the answer of one network is made, and read again.

    The opened array has a row for each image: `values` where they are revealed; for each
    class whether it is chosen, by 1 or 0; the same again, if it is so by a clear lead;
    and whether everything stayed in bounds. Each only where there is something to say.
    """

    reveal: Reveal
    classes: int
    trust: Trust

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

    def __call__(self, logits: Array, *slack: Array) -> Array:
        """The array to open: `slack` holds what must not be negative, an array for each stage."""
        watched = list(slack)
        if not self._has_values and self.trust.bound > 0:
            watched += [self.trust.bound - logits, logits + self.trust.bound]
        checks = jnp.concatenate(watched, axis=1) if watched else None
        if self._chooses:
            count = TOP if self.reveal is Reveal.TOP5 else 1
            lead = self.trust.doubt if self._tells_close else None
            found = choose_best(logits, count, checks=checks, lead=lead)
            known = (found.chosen, found.leads, found.is_kept)
            parts = [part for part in known if part is not None]
        else:
            if checks is None:
                raise UserError("its plan has a guard, and nothing to watch")
            parts = [is_kept(checks)]
        if self._has_values:
            rounded = jnp.floor(logits + 0.5) if self.reveal is Reveal.ROUNDED else logits
            parts = [rounded, *(part.astype(jnp.float32) for part in parts)]
        return jnp.concatenate(parts, axis=1)

    def read(self, opened: np.ndarray) -> Answers:
        """What an opened array says; an array that no honest run gives is refused."""
        columns, place = np.asarray(opened), 0

        def take(count: int) -> np.ndarray:
            nonlocal place
            place += count
            return columns[:, place - count : place]

        values = take(self.classes).astype(np.float32) if self._has_values else None
        if self._chooses:
            chosen = _bits(take(self.classes))
        else:
            assert values is not None
            chosen = np.arange(self.classes) == values.argmax(axis=1)[:, None]
        close, trusted = np.zeros(len(columns), bool), np.ones(len(columns), bool)
        if self._tells_close:
            close = ~_bits(take(self.classes)).any(axis=1)
        if self._vouches:
            trusted = _bits(take(1))[:, 0]
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
        return Answers(
            reveal=self.reveal,
            values=None if values is None else _rows(values),
            chosen=_rows(chosen),
            trusted=tuple(trusted.tolist()),
            close=tuple(close.tolist()),
        )


def _rows(array: np.ndarray) -> tuple[tuple[Any, ...], ...]:
    return tuple(map(tuple, array.tolist()))


def _bits(columns: np.ndarray) -> np.ndarray:
    if not np.isin(columns, (0, 1)).all():
        raise PartyError("the opened answer is none: the parties did not compute the same")
    return columns.astype(bool)

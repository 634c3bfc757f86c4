"""What both parties know of a model, and what they open of its logits. No weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Protocol
from mpcvit.artifacts.record import Reveal
from mpcvit.artifacts.resolve import MOST_PARAMETERS, require_reasonable
from mpcvit.codec import decode, encode, register
from mpcvit.errors import UserError
from mpcvit.lowering.out_of_range import Trust
from mpcvit.lowering.program import Model, PublicProgram
from mpcvit.secure.answers import BatchAnswers, KnownModel
from mpcvit.secure.errors import PartyError
from mpcvit.secure.spu.best import choose_best, count_noise, is_kept, mask_best, mask_checks

LEAST_RUNS = 3
"""Runs of the network in a session from which a set-up pays.

It sends every kernel twice, and each run then sends it no more. So it sends less from the third
run on. By the clock it has paid from the second to the fourth run on, depending on the network
(`pays_from` in results/secure/lowering-dealer.csv).
"""

TOP = 5
_MAX_NAME = 200  # characters of a class's name


@register("mpcvit-card/5", "description of a model")
@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """The public half of a model, and what runs reveal of its logits."""

    public: PublicProgram
    reveal: Reveal = Reveal.CLASS

    @property
    def model(self) -> ModelConfig:
        return self.public.model

    @property
    def architecture(self) -> Architecture:
        return self.public.architecture

    @property
    def data(self) -> DataConfig:
        return self.public.data

    def opening(self, protocol: Protocol | None = None) -> "Opening":
        """Return how the data owner's answer is made of logits, under a protocol."""
        return Opening(
            reveal=self.reveal,
            classes=self.model.classes,
            trust=self.public.trust,
            masked=protocol is not None and protocol.shares_are_sums,
        )

    @property
    def known(self) -> KnownModel:
        """What the data owner's answers say of the model."""
        digest = self.public.digest()
        return KnownModel(digest=digest, classes=self.public.classes, reveal=self.reveal)

    @classmethod
    def of(cls, model: Model, reveal: Reveal = Reveal.CLASS) -> "ModelCard":
        return cls(public=PublicProgram.of(model), reveal=reveal)

    def to_dict(self) -> dict[str, Any]:
        return encode(self)

    @classmethod
    def from_dict(cls, document: Any) -> "ModelCard":
        """Decode what the model owner sent, and believe nothing of it."""
        try:
            require_reasonable(decode(ModelConfig, document["public"]["model"], "model"))
            card = decode(cls, document, "the description")
            if any(len(name) > _MAX_NAME for name in card.public.classes):
                raise UserError(f"a class's name has more than {_MAX_NAME} characters")
            if sum(map(math.prod, card.public.shapes.values())) > MOST_PARAMETERS:
                raise UserError(f"it has more than {MOST_PARAMETERS:,} parameters")
            _ = card.opening()  # refuses what says nothing
            return card
        except (UserError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise PartyError(f"the model owner's description cannot be used: {error}") from error


def settled(profile: Profile, card: ModelCard, runs: int) -> Profile:
    """Return a profile for a session of a number of runs: without reuse if it does not pay.

    Networks that were not lowered never reuse masks, as their products are not
    known to be of the one form that can.
    """
    reuse = profile.reuse_weight_masks and card.public.plan is not None and runs >= LEAST_RUNS
    return replace(profile, reuse_weight_masks=reuse)


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A way to make the answer of one network, and to read it again.

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

    @property
    def _lead(self) -> float | None:
        return self.trust.doubt if self._tells_close else None

    def __call__(self, logits: Array, *given: Array) -> Array:
        """Return the array to open.

        `given` holds what must not be negative, by stage, and then the noise if any is taken.
        """
        if not self.takes_noise:
            return self._open(logits, given, None)
        *slack, noise = given
        return self._open(logits, slack, noise)

    def count_noise(self, logits: Any, *slack: Any) -> int:
        """Return how many numbers of noise an image takes; arguments may be shapes alone."""
        checks = jax.eval_shape(self._checks, logits, slack)
        if self._chooses:
            return count_noise(logits, checks=checks, lead=self._lead)
        return checks.shape[1]

    def _checks(self, logits: Array, slack: Sequence[Array]) -> Array | None:
        """Return what must not be negative, if anything."""
        watched = list(slack)
        if not self._has_values and self.trust.bound > 0:
            watched += [self.trust.bound - logits, logits + self.trust.bound]
        return jnp.concatenate(watched, axis=1) if watched else None

    def _open(self, logits: Array, slack: Sequence[Array], noise: Array | None) -> Array:
        checks = self._checks(logits, slack)
        if self._chooses:
            count = TOP if self.reveal is Reveal.TOP5 else 1
            if noise is None:
                found = choose_best(logits, count, checks=checks, lead=self._lead)
            else:
                found = mask_best(logits, noise, checks=checks, lead=self._lead)
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

"""What both parties know of a model, and how they run it. Everything but its weights."""

import math
from dataclasses import dataclass, replace
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Protocol
from mpcvit.artifacts.record import Reveal
from mpcvit.artifacts.resolve import MOST_PARAMETERS, require_reasonable
from mpcvit.codec import decode, encode, register
from mpcvit.errors import UserError
from mpcvit.lowering.program import Model, PublicProgram
from mpcvit.secure.errors import PartyError
from mpcvit.secure.result import KnownModel
from mpcvit.secure.spu.answer import Opening

LEAST_RUNS = 3
"""Runs of the network in a session from which a set-up pays.

It sends every kernel twice, and each run then sends it no more. So it sends less from the third
run on. By the clock it has paid from the second to the fourth run on, depending on the network
(`pays_from` in results/secure/lowering-dealer.csv).
"""

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

    def opening(self, protocol: Protocol | None = None) -> Opening:
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

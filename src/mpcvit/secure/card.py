"""ModelCard: what both parties know of a model. Everything but its weights."""

from dataclasses import dataclass, field, replace
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.record import Reveal
from mpcvit.artifacts.resolve import validate
from mpcvit.codec import decode, encode
from mpcvit.dealer.script import Scripts, scripts_from_plain, scripts_to_plain
from mpcvit.errors import UserError
from mpcvit.lowering.functions import functions_of
from mpcvit.lowering.plan import Plan, Trust
from mpcvit.lowering.program import Model, SecureProgram
from mpcvit.secure.errors import PartyError
from mpcvit.secure.spu.answer import Opening
from mpcvit.storage import read_json

FORMAT = "mpcvit-card/4"
_MAX_SIZES = {
    **{"image_size": 2048, "channels": 16, "depth": 256, "heads": 256, "width": 16_384},
    **{"classes": 100_000, "tokens": 65_536},
}
_MAX_PARAMETERS = 2_000_000_000  # ViT-Giant has 1.8 billion
_MAX_NAME = 200  # characters of a class's name


@dataclass(frozen=True, kw_only=True)
class ModelCard:
    """Shape, architecture, normalisation and class names of a model, and what it reveals.

    Of a lowered one also its plan: the intervals that calibration found, and
    the formulas chosen for them; and what runs of it will ask of a dealer, which
    each party holds its own SPU to.
    """

    model: ModelConfig
    architecture: Architecture
    data: DataConfig
    classes: tuple[str, ...]
    plan: Plan | None = None
    scripts: Scripts = field(default_factory=dict)
    reveal: Reveal = Reveal.CLASS

    @property
    def opening(self) -> Opening:
        """How the data owner's answer is made of logits."""
        trust = Trust() if self.plan is None else self.plan.trust
        return Opening(reveal=self.reveal, classes=self.model.classes, trust=trust)

    @classmethod
    def of(cls, model: Model, reveal: Reveal = Reveal.CLASS) -> "ModelCard":
        program = model if isinstance(model, SecureProgram) else None
        return cls(
            model=model.model,
            architecture=model.architecture,
            data=replace(model.data, path=""),
            classes=model.classes,
            plan=None if program is None else program.plan,
            scripts={} if program is None else program.scripts,
            reveal=reveal,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": encode(self.model),
            "architecture": read_json(self.architecture.to_json(), "architecture"),
            "data": encode(self.data),
            "classes": list(self.classes),
            "plan": None if self.plan is None else self.plan.to_dict(),
            "scripts": scripts_to_plain(self.scripts),
            "reveal": self.reveal.value,
        }

    @classmethod
    def from_dict(cls, document: Any) -> "ModelCard":
        """Decode what the model owner sent, and believe nothing of it."""
        try:
            if document["format"] != FORMAT:
                raise UserError(f"its format is {document['format']!r}, not {FORMAT!r}")
            card = cls(
                model=decode(ModelConfig, document["model"], "model"),
                architecture=Architecture.from_document(document["architecture"], "architecture"),
                data=decode(DataConfig, document["data"], "data"),
                classes=tuple(str(name) for name in document["classes"]),
                plan=None if document["plan"] is None else Plan.from_dict(document["plan"]),
                scripts=scripts_from_plain(document["scripts"]),
                reveal=Reveal(document["reveal"]),
            )
            model = card.model
            _require_reasonable(card)
            validate(model, card.architecture)
            if len(card.classes) != model.classes or len(card.data.mean) != model.channels:
                raise UserError("its parts do not fit each other")
            if card.plan is not None:
                functions_of(card.plan, model, card.architecture)
            _ = card.opening  # refuses what says nothing
            return card
        except (UserError, TypeError, KeyError, AttributeError, ValueError) as error:
            raise PartyError(f"the model owner's description cannot be used: {error}") from error


def _require_reasonable(card: ModelCard) -> None:
    """Refuse sizes that no model has, before anything of these sizes is made."""
    model = card.model
    for name, most in _MAX_SIZES.items():
        if not 0 < getattr(model, name) <= most:
            raise UserError(f"its {name} of {getattr(model, name)} is not within 1 and {most}")
    patch_values = model.patch_size**2 * model.channels
    per_layer = model.width**2 * (4 + 2 * model.mlp_ratio)
    around = model.width * (patch_values + model.tokens + model.classes)
    if model.depth * per_layer + around > _MAX_PARAMETERS:
        raise UserError(f"it has more than {_MAX_PARAMETERS:,} parameters")
    if any(len(name) > _MAX_NAME for name in card.classes):
        raise UserError(f"a class's name has more than {_MAX_NAME} characters")

"""Engine settings: the ring, fraction bits, truncation, mask reuse and squares of a program."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer, Truncation, names_with
from mpcvit.artifacts.provenance import PROGRAM_FILE, advice_on
from mpcvit.codec import decode
from mpcvit.errors import UserError
from mpcvit.storage import read_json

FORMAT = "mpcvit-program/3"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The settings of SPU that a program is meant for."""

    ring_bits: int
    fraction_bits: int
    truncation: Truncation
    reuse_weight_masks: bool
    owned_weights: bool = False
    squares: bool = False

    @property
    def requires_dealer(self) -> bool:
        """Whether only protocols with a dealer support these settings."""
        return self.truncation is Truncation.LOCAL or self.reuse_weight_masks

    def apply(self, profile: Profile) -> Profile:
        """Return a profile with these settings; its protocol, network and limits stay."""
        if self.truncation is Truncation.LOCAL and not profile.protocol.truncates_locally:
            raise UserError(
                f"the program was lowered for {names_with(truncates_locally=True)}, and cannot run "
                f"under {profile.protocol.name}; take --profile semi2k-dealer with a dealer, or "
                "lower the checkpoint again with --profile"
            )
        return replace(
            profile,
            ring_bits=self.ring_bits,
            fraction_bits=self.fraction_bits,
            truncation=self.truncation,
            # elsewhere nothing would hold it to its rules; see Profile
            reuse_weight_masks=self.reuse_weight_masks and profile.dealer is Dealer.THIRD_PARTY,
            owned_weights=self.owned_weights and profile.protocol.owned_weights,
            squares=self.squares and self.truncation is Truncation.LOCAL,
        )


def with_engine(profile: Profile, engine: EngineSettings | None) -> Profile:
    return profile if engine is None else engine.apply(profile)


def read_engine(folder: Path) -> EngineSettings:
    """Read the engine of a program on disk, and nothing else of it."""
    path = folder / PROGRAM_FILE
    try:
        document = read_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(why_no_program(folder)) from error
    require_format(document, path)
    try:
        engine = document["public"]["engine"]
    except (KeyError, TypeError):
        raise UserError(
            f"{path} is damaged, as it names no engine; lower the checkpoint again with "
            "'mpcvit lower'"
        ) from None
    return decode(EngineSettings, engine, str(path))


def why_no_program(path: Path) -> str:
    """Say what is wrong with a folder, or a copy of its description, and what to do."""
    if path.is_dir() and not (path / PROGRAM_FILE).exists():
        advice = advice_on(path) or f"it has no {PROGRAM_FILE}; 'mpcvit lower' makes programs"
        return f"{path} holds no program: {advice}"
    if not path.exists():
        return f"there is no program {path}"
    if path.is_file():
        return f"{path} is no program: 'mpcvit lower' makes folders with {PROGRAM_FILE}"
    return f"{path} holds no program: its {PROGRAM_FILE} cannot be read"


def require_format(document: Any, path: Path) -> None:
    """Refuse a program of another version."""
    version = document.get("format") if isinstance(document, dict) else None
    if version != FORMAT:
        raise UserError(
            f"{path} is not a program of this version: its format is {version!r}, "
            f"not {FORMAT!r}; lower the checkpoint again with 'mpcvit lower'"
        )


def choose_engine(profile: Profile) -> EngineSettings:
    """Return what suits a profile: if it can truncate locally, the wide ring.

    Products take one exchange each there. Fraction bits cost nothing, and 26 of them leave
    rounding far below the errors of approximations.
    """
    if profile.protocol.truncates_locally:
        return EngineSettings(
            ring_bits=128,
            fraction_bits=26,
            truncation=Truncation.LOCAL,
            reuse_weight_masks=True,
            squares=True,
        )
    return EngineSettings(
        ring_bits=profile.ring_bits,
        fraction_bits=profile.fraction_bits,
        truncation=profile.truncation,
        reuse_weight_masks=False,
        owned_weights=profile.protocol.owned_weights,
    )

"""Showcase: trained networks, their programs and sample images, as one folder that ships.

`showcase.json` says where each comes from and how well it does; beside it lie a
run folder for each network, with its program in it, and the images as PNGs.
`tools/make_showcase.py` makes such a folder; never edit one by hand.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mpcvit.artifacts.provenance import MODEL_FILE, Environment
from mpcvit.errors import UserError
from mpcvit.storage import read_json, write_text

FORMAT = "mpcvit-showcase/1"
DESCRIPTION = "showcase.json"
PROGRAM_FOLDER = "program"
SHIPPED = Path(__file__).parent / "shipped"


@dataclass(frozen=True, kw_only=True)
class ShownNetwork:
    """A trained network, and its accuracy on the whole test split."""

    name: str
    origin: str
    config: str  # its name; the whole of it is in the checkpoint
    seed: int
    epochs: int
    parameters: int
    commit: str  # of the code that trained it
    top1: dict[str, float]  # "plain", and "lowered" in plaintext by the program's formulas


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A test image."""

    file: str
    place: int  # in the test split
    truth: str


@dataclass(frozen=True, kw_only=True)
class Showcase:
    """What is shown, and under which profile its programs were lowered."""

    profile: str
    networks: tuple[ShownNetwork, ...]
    samples: tuple[Sample, ...]
    test_images: int  # that the accuracies are of
    data_fingerprint: str
    environment: Environment  # that lowered and evaluated
    digests: dict[str, str]  # SHA-256 of every file

    def seal(self, folder: Path) -> None:
        """Describe a folder whose other files are in their places."""
        sealed = replace(self, digests=dict(_digests(folder)))
        document = {"format": FORMAT, **asdict(sealed)}
        write_text(folder / DESCRIPTION, json.dumps(document, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Showcase":
        """Read a showcase, and refuse one with a file that is not as it was."""
        place = folder / DESCRIPTION
        try:
            document = read_json(place.read_text(encoding="utf-8"), str(place))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{folder} holds no showcase; tools/make_showcase.py makes one"
            ) from error
        if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
            raise UserError(f"{place} is no showcase of this version ({FORMAT!r})")
        try:
            showcase = cls(**{**document, **_decode(document)})
        except (TypeError, KeyError) as error:
            raise UserError(f"{place} cannot be understood: {error}") from error
        if showcase.digests != dict(_digests(folder)):
            raise UserError(f"{folder} is damaged: its files are not those of {DESCRIPTION}")
        return showcase


def model_in(folder: Path, network: str, form: str) -> Path:
    """Return the path of a network as it was trained, or as it was lowered."""
    return folder / network / (MODEL_FILE if form == "plain" else PROGRAM_FOLDER)


def _decode(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "networks": tuple(ShownNetwork(**one) for one in document["networks"]),
        "samples": tuple(Sample(**one) for one in document["samples"]),
        "environment": Environment(**document["environment"]),
    }


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != DESCRIPTION:
            name = file.relative_to(folder).as_posix()
            yield name, hashlib.sha256(file.read_bytes()).hexdigest()

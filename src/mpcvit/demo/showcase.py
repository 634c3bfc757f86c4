"""Showcase: trained networks, their programs and sample images, as one folder that ships.

`showcase.json` says where each comes from and how well it does; beside it lie a
run folder for each network, with its program in it, and the images as PNGs.
`tools/make_showcase.py` makes such a folder; never edit one by hand.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from mpcvit.artifacts.provenance import MODEL_FILE, Environment
from mpcvit.codec import load, register, require, save
from mpcvit.errors import UserError

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
class Column:
    """A network in one form, as the demo shows it."""

    network: str
    form: str  # "plain" or "lowered"
    images: int | None = None  # how many it classifies at most; None: all

    @property
    def title(self) -> str:
        return f"{self.network}, {self.form}"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A test image."""

    file: str
    place: int  # in the test split
    truth: str


@register("mpcvit-showcase/2", "showcase")
@dataclass(frozen=True, kw_only=True)
class Showcase:
    """The networks and images of a demo, and the profile for which programs were lowered."""

    profile: str
    networks: tuple[ShownNetwork, ...]
    columns: tuple[Column, ...]  # speed-ups are relative to the first
    samples: tuple[Sample, ...]
    test_images: int  # that the accuracies are of
    data_fingerprint: str
    environment: Environment  # that lowered and evaluated
    digests: dict[str, str]  # SHA-256 of every file

    def __post_init__(self) -> None:
        require(bool(self.columns), "columns", "must name what is shown")
        known = {network.name: network.top1 for network in self.networks}
        for column in self.columns:
            require(
                column.form in known.get(column.network, {}),
                "columns",
                f"names {column.title}, which is not among the networks",
            )

    def seal(self, folder: Path) -> None:
        """Describe a folder whose other files are in their places."""
        save(folder / DESCRIPTION, replace(self, digests=dict(_digests(folder))))

    @classmethod
    def load(cls, folder: Path) -> "Showcase":
        """Read a showcase, and refuse one with a file that is not as it was."""
        try:
            showcase = load(cls, folder / DESCRIPTION)
        except UserError as error:
            raise UserError(f"{error}; a showcase is a folder with showcase.json") from error
        if showcase.digests != dict(_digests(folder)):
            raise UserError(f"{folder} is damaged: its files are not those of {DESCRIPTION}")
        return showcase


def model_in(folder: Path, network: str, form: str) -> Path:
    """Return the path of a network as it was trained, or as it was lowered."""
    return folder / network / (MODEL_FILE if form == "plain" else PROGRAM_FOLDER)


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file.name != DESCRIPTION:
            name = file.relative_to(folder).as_posix()
            yield name, hashlib.sha256(file.read_bytes()).hexdigest()

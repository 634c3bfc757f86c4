"""Folders of pictures without labels: one broken file does not stop the others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.data.images import decode_image
from mpcvit.data.inputs import is_picture, list_pictures, make_inputs
from mpcvit.errors import UserError

FEWEST_PHOTOS = 20
MOST_PHOTOS = 1024
_LISTED = 5  # files that a message names

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Photos:
    """Pictures of a folder as a model takes them, and the files that cannot be read."""

    images: np.ndarray  # float32 [image, height, width, channel], normalised
    skipped: tuple[str, ...] = ()  # a sentence for each file


def read_photos(
    folder: Path,
    model: ModelConfig,
    data: DataConfig,
    *,
    most: int = MOST_PHOTOS,
    strict: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Photos:
    """Read the pictures below a folder, at most `most` of them, from all over it.

    A file that cannot be read is skipped, or refused if `strict`.
    """
    found = _find_pictures(Path(folder))
    places = np.linspace(0, len(found) - 1, min(most, len(found))).astype(int)
    images, skipped = [], []
    for done, place in enumerate(places):
        try:
            images.append(make_inputs([found[place]], model, data).images[0])
        except UserError as error:
            if strict:
                raise
            skipped.append(str(error))
        progress("reading photos", done + 1, len(places))
    if len(images) < FEWEST_PHOTOS:
        raise UserError(_too_few(folder, len(images), len(found), skipped))
    return Photos(images=np.stack(images), skipped=tuple(skipped))


def sift_pictures(
    paths: Sequence[str | Path],
    *,
    strict: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> tuple[list[Path], tuple[str, ...]]:
    """Return the pictures of files and folders, and a sentence for each that cannot be read.

    A file that is named itself must be readable, and with `strict` all must.
    """
    named, found = {Path(path) for path in paths}, list_pictures(paths)
    kept, skipped = [], []
    for done, path in enumerate(found):
        try:
            decode_image(path, channels=3, where=str(path))
            kept.append(path)
        except UserError as error:
            if strict or path in named:
                raise
            skipped.append(str(error))
        progress("looking at pictures", done + 1, len(found))
    if not kept:
        raise UserError(f"no picture can be read: {list_skipped(tuple(skipped))}")
    return kept, tuple(skipped)


def list_skipped(skipped: tuple[str, ...]) -> str:
    """Return the first few sentences about files that were skipped.

    >>> list_skipped(("a.png is not an image", "b.png is not an image"))
    'a.png is not an image; b.png is not an image'
    """
    rest = f"; and {len(skipped) - _LISTED} more" if len(skipped) > _LISTED else ""
    return "; ".join(skipped[:_LISTED]) + rest


def _find_pictures(folder: Path) -> list[Path]:
    """Return the pictures in a folder and in the folders below it, hidden ones left out."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    found = sorted(
        file
        for file in folder.rglob("*")
        if is_picture(file)
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not found:
        raise UserError(f"the folder {folder} holds no images")
    return found


def _too_few(folder: Path, usable: int, found: int, skipped: list[str]) -> str:
    reason = f" ({list_skipped(tuple(skipped))})" if skipped else ""
    return (
        f"{folder} holds {found:,} pictures, and {usable} of them can be used{reason}; "
        f"calibration needs at least {FEWEST_PHOTOS}"
    )

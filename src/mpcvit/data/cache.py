"""Decoded images on disk: decode once, map into memory ever after.

An entry is a folder with images.npy, labels.npy and meta.json. It is written
under another name and renamed when whole, so readers see all of it or nothing,
and of two processes that decode at once the second throws its copy away.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from mpcvit.errors import UserError
from mpcvit.storage import CACHE_VARIABLE, require_room, write_text

_FORMAT = "mpcvit-images/1"
_IMAGES_AT_ONCE = 256

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """One split's arrays, mapped read-only, with its class names and content hash."""

    images: np.ndarray  # uint8 [index, height, width, channel]
    labels: np.ndarray  # int32 [index]
    classes: tuple[str, ...]
    fingerprint: str  # sha256 over the pixels, then the labels


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The images that a new entry is made from."""

    shape: tuple[int, int, int, int]
    classes: tuple[str, ...]
    examples: Iterable[tuple[np.ndarray, int]]


def cached(
    root: Path, key: str, decode: Callable[[], ImageSource], progress: Callable[[int, int], None]
) -> Decoded:
    """Open the entry of a key; if there is none, or a damaged one, decode it first."""
    folder = root / key
    if (entry := _open(folder)) is not None:
        return entry
    new = decode()
    with _naming_the_variable(root):
        require_room(root, int(np.prod(new.shape)))
    temporary = root / f".{key}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        _write(temporary, new, progress)
        with _naming_the_variable(root):
            _move_into_place(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    entry = _open(folder)
    if entry is None:
        raise UserError(f"the decoded images in {folder} vanished; is {root} cleaned by others?")
    return entry


def _open(folder: Path) -> Decoded | None:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", mmap_mode="r", allow_pickle=False)
        if meta["format"] != _FORMAT or list(images.shape) != meta["shape"]:
            return None
        return Decoded(
            images=images,
            labels=labels,
            classes=tuple(meta["classes"]),
            fingerprint=meta["fingerprint"],
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return None


def _write(folder: Path, new: ImageSource, progress: Callable[[int, int], None]) -> None:
    count = new.shape[0]
    labels: list[int] = []
    hasher = hashlib.sha256()
    with _naming_the_variable(folder.parent):
        folder.mkdir()
        # not a memory map: on a full disk that ends in a bus error instead of an exception
        file = (folder / "images.npy").open("wb")
    with file:
        header = {"descr": "|u1", "fortran_order": False, "shape": new.shape}
        with _naming_the_variable(folder.parent):
            np.lib.format.write_array_header_1_0(file, header)
        for chunk in _chunks(new.examples):
            pixels = np.stack([image for image, _ in chunk]).tobytes()
            labels += [label for _, label in chunk]
            hasher.update(pixels)
            with _naming_the_variable(folder.parent):
                file.write(pixels)
            progress(len(labels), count)
        with _naming_the_variable(folder.parent):
            file.flush()
            os.fsync(file.fileno())
    if len(labels) != count:
        raise UserError(f"{count} images were announced, but {len(labels)} came")
    array = np.array(labels, np.int32)
    hasher.update(array.tobytes())
    with _naming_the_variable(folder.parent):
        np.save(folder / "labels.npy", array, allow_pickle=False)
    meta = {
        "format": _FORMAT,
        "shape": new.shape,
        "classes": new.classes,
        "fingerprint": hasher.hexdigest(),
    }
    with _naming_the_variable(folder.parent):
        write_text(folder / "meta.json", json.dumps(meta, indent=2) + "\n")


def _chunks(
    examples: Iterable[tuple[np.ndarray, int]],
) -> Iterator[list[tuple[np.ndarray, int]]]:
    iterator = iter(examples)
    while chunk := list(islice(iterator, _IMAGES_AT_ONCE)):
        yield chunk


def _move_into_place(temporary: Path, folder: Path) -> None:
    try:
        temporary.rename(folder)
    except OSError:
        if _open(folder) is not None:
            return
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)


@contextmanager
def _naming_the_variable(root: Path) -> Iterator[None]:
    advice = f"set {CACHE_VARIABLE} to keep decoded images elsewhere"
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error
    except OSError as error:
        raise UserError(f"cannot write into {root}: {error.strerror or error}; {advice}") from error

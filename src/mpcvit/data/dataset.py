"""Labelled images as arrays: one call from a configuration to memory-mapped splits.

A split is decoded once. Its entry of the cache is a folder with images.npy, labels.npy and
meta.json, which is renamed when whole, so that readers see all of it or nothing.
"""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.config import DataConfig
from mpcvit.artifacts.image_fit import ImageFit
from mpcvit.codec import encode
from mpcvit.data.class_names import match_classes
from mpcvit.data.images import fit_image, spread_evenly
from mpcvit.data.sources import Example, Source, SplitName, find_source
from mpcvit.errors import UserError
from mpcvit.progress import Progress, quiet
from mpcvit.storage import CACHE_VARIABLE, cache_folder, require_room

_FORMAT = "mpcvit-images/1"
_IMAGES_AT_ONCE = 256
_ADVICE = f"set {CACHE_VARIABLE} to keep decoded images elsewhere"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Images and labels of equal length; read-only where they come from disk."""

    images: np.ndarray  # uint8 [index, height, width, channel]
    labels: np.ndarray  # int32 [index]
    classes: tuple[str, ...] = ()  # names of its labels, if its source has them
    fingerprint: str = ""  # sha256 over pixels and labels; empty for arrays made in memory
    matching: str = ""  # how its classes were matched with those of a model

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """The images that a new entry is made from."""

    shape: tuple[int, int, int, int]
    classes: tuple[str, ...]
    examples: Iterable[tuple[np.ndarray, int]]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Both splits, the names behind the labels, and a hash of all of it."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    fingerprint: str
    validation: Split | None = None  # cut from the training images

    @property
    def judging(self) -> Split:
        """Return the images that choices are made by: test images only without a validation."""
        return self.test if self.validation is None else self.validation


def load_dataset(
    config: DataConfig,
    *,
    image_size: int,
    channels: int,
    classes: int,
    progress: Progress = quiet,
) -> Dataset:
    """Load both splits, decoding them first where no cache holds them.

    Training images are stored at `image_size`; test images are prepared as
    `config.eval_crop` and `config.fit` say. Of training images only `config.train_images` are
    kept, where that is set; `config.validation_images` are set apart before.
    `progress` hears (description, done, total).
    """
    source = find_source(config)
    train, test = (
        _load(source, config, split, image_size, channels, classes, progress)
        for split in ("train", "test")
    )
    if train.classes != test.classes:
        raise UserError(f"{source.root}: its train and test images have different class names")
    validation = None
    if config.validation_images:
        train, validation = _set_apart(train, config.validation_images, classes)
    if config.train_images:
        train = _part(train, config.train_images, source)
    return Dataset(
        train=train,
        test=test,
        classes=test.classes,
        fingerprint=hashlib.sha256(f"{train.fingerprint} {test.fingerprint}".encode()).hexdigest(),
        validation=validation,
    )


def count_classes(config: DataConfig, channels: int) -> int:
    """Count the classes of a data set; no image is decoded."""
    return len(find_source(config).open_split("train", channels).classes)


def sample_evenly(split: Split, count: int) -> list[np.ndarray]:
    """Return `count` images of a split at even distances, whatever its order."""
    return [np.asarray(split.images[index]) for index in spread_evenly(len(split), count)]


def _part(split: Split, count: int, source: Source) -> Split:
    if count > len(split):
        raise UserError(
            f"data.train_images is {count}, but {source.root} has {len(split)} training images"
        )
    return _subset(split, spread_evenly(len(split), count))


def _set_apart(split: Split, count: int, classes: int) -> tuple[Split, Split]:
    """Return the rest of a split, and `count` images: as many of each class, from all over it.

    The choice depends on the labels alone, so that every run sets the same images apart.
    """
    chosen = []
    for label in range(classes):
        of_class = np.flatnonzero(split.labels == label)
        wanted = count // classes + (label < count % classes)
        if wanted >= len(of_class):
            raise UserError(
                f"data.validation_images is {count}, but class {label} has only "
                f"{len(of_class)} training images: some must remain"
            )
        chosen.append(of_class[spread_evenly(len(of_class), wanted)])
    apart = np.zeros(len(split), bool)
    apart[np.concatenate(chosen)] = True
    return _subset(split, np.flatnonzero(~apart)), _subset(split, np.flatnonzero(apart))


def _subset(split: Split, indices: np.ndarray) -> Split:
    images, labels = np.asarray(split.images[indices]), split.labels[indices]
    content = hashlib.sha256(images.data)
    content.update(labels.data)
    return replace(split, images=images, labels=labels, fingerprint=content.hexdigest())


def load_split(
    config: DataConfig,
    split: SplitName,
    *,
    image_size: int,
    channels: int,
    classes: int | tuple[str, ...],
    progress: Progress = quiet,
) -> Split:
    """Load one split; the other one may be missing.

    `classes` are how many there must be, or the names of a model's classes: then labels are
    the model's.
    """
    source = find_source(config)
    count = classes if isinstance(classes, int) else None
    loaded = _load(source, config, split, image_size, channels, count, progress)
    if isinstance(classes, int):
        return loaded
    matched = match_classes(loaded.classes, classes, where=str(source.root))
    labels = np.array(matched.places, np.int32)[loaded.labels]
    return replace(loaded, labels=labels, classes=classes, matching=matched.sentence)


def _load(
    source: Source,
    config: DataConfig,
    split: SplitName,
    image_size: int,
    channels: int,
    classes: int | None,
    progress: Progress,
) -> Split:
    crop, fit = config.eval_crop, config.fit
    if split == "train":  # kept whole: augmentation cuts
        crop, fit = 1.0, replace(fit, edge=0, uncovered=0)

    def decode() -> ImageSource:
        examples = source.open_split(split, channels)
        if examples.count == 0:
            raise UserError(f"{source.root} has no {split} images")
        _refuse_class_count(source, len(examples.classes), classes)
        return ImageSource(
            shape=(examples.count, image_size, image_size, channels),
            classes=examples.classes,
            examples=_fit(examples.stream, image_size, crop, fit, len(examples.classes)),
        )

    settings: dict[str, Any] = {"image_size": image_size, "channels": channels, "crop": crop}
    if fit != ImageFit():
        settings["fit"] = encode(fit)
    key = _cache_key(source, split=split, **settings)
    report = partial(progress, f"decoding {split} images")
    decoded = cached(cache_folder(), key, decode, report)
    _refuse_class_count(source, len(decoded.classes), classes)
    return decoded


def _fit(
    stream: Iterator[Example], image_size: int, crop: float, fit: ImageFit, classes: int
) -> Iterator[tuple[np.ndarray, int]]:
    for image, label, where in stream:
        if not 0 <= label < classes:
            raise UserError(f"{where} has label {label}, outside of 0 to {classes - 1}")
        yield fit_image(image, image_size, crop, fit), label


def _refuse_class_count(source: Source, found: int, classes: int | None) -> None:
    if classes is not None and found != classes:
        raise UserError(
            f"{source.root} has {found} classes, but the model has {classes} (model.classes)"
        )


def _cache_key(source: Source, **settings: Any) -> str:
    """Name what the decoded arrays depend on, without reading a single image."""
    files = []
    try:
        for path in source.files():
            status = path.stat()
            files.append((str(path.absolute()), status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise UserError(f"cannot read {source.root}: {error.strerror or error}") from error
    document = [source.kind.value, files, sorted(settings.items())]
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()[:32]


def cached(
    root: Path, key: str, decode: Callable[[], ImageSource], progress: Callable[[int, int], None]
) -> Split:
    """Open the entry of a key; if there is none, or a damaged one, decode it first."""
    folder = root / key
    if (entry := _open(folder)) is not None:
        return entry
    new = decode()
    try:
        require_room(root, int(np.prod(new.shape)))
    except UserError as error:
        raise UserError(f"{error}; {_ADVICE}") from error
    temporary = root / f".{key}.{os.getpid()}.{secrets.token_hex(4)}"
    try:
        _write(temporary, new, progress)
        _move_into_place(temporary, folder)
    except OSError as error:  # pictures that cannot be read are a UserError
        reason = error.strerror or error
        raise UserError(f"cannot write into {root}: {reason}; {_ADVICE}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    entry = _open(folder)
    if entry is None:
        raise UserError(f"the decoded images in {folder} vanished; is {root} cleaned by others?")
    return entry


def _open(folder: Path) -> Split | None:
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", mmap_mode="r", allow_pickle=False)
        if meta["format"] != _FORMAT or list(images.shape) != meta["shape"]:
            return None
        return Split(
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
    folder.mkdir()
    # not a memory map: on a full disk that ends in a bus error instead of an exception
    with (folder / "images.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": new.shape}
        np.lib.format.write_array_header_1_0(file, header)
        for chunk in _chunks(new.examples):
            pixels = np.stack([image for image, _ in chunk]).tobytes()
            labels += [label for _, label in chunk]
            hasher.update(pixels)
            file.write(pixels)
            progress(len(labels), count)
        file.flush()
        os.fsync(file.fileno())
    if len(labels) != count:
        raise UserError(f"{count} images were announced, but {len(labels)} came")
    array = np.array(labels, np.int32)
    hasher.update(array.tobytes())
    np.save(folder / "labels.npy", array, allow_pickle=False)
    meta = {
        "format": _FORMAT,
        "shape": new.shape,
        "classes": new.classes,
        "fingerprint": hasher.hexdigest(),
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", "utf-8")


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

"""Labelled images as arrays: one call from a configuration to memory-mapped splits."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.config import DataConfig
from mpcvit.artifacts.image_fit import ImageFit
from mpcvit.codec import encode
from mpcvit.data.cache import Decoded, ImageSource, Progress, cached
from mpcvit.data.class_names import match_classes
from mpcvit.data.images import fit_image
from mpcvit.data.sources import Example, Source, SplitName, find_source
from mpcvit.errors import UserError
from mpcvit.storage import cache_folder


@dataclass(frozen=True, kw_only=True)
class Split:
    """Images and labels of equal length; read-only where they come from disk."""

    images: np.ndarray  # uint8 [index, height, width, channel]
    labels: np.ndarray  # int32 [index]
    fingerprint: str = ""  # sha256 over pixels and labels; empty for arrays made in memory
    matching: str = ""  # how its classes were matched with those of a model

    def __len__(self) -> int:
        return len(self.labels)


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
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> Dataset:
    """Load both splits, decoding them first where no cache holds them.

    Training images are stored at `image_size`; test images are prepared as
    `config.eval_crop` and `config.fit` say. Of training images only `config.train_images` are
    kept, where that is set; `config.validation_images` are set apart before.
    `progress` hears (description, done, total).
    """
    source = find_source(config)
    train, test = (
        _load(source, config, split, image_size, channels, classes, progress, cache_dir)
        for split in ("train", "test")
    )
    if train.classes != test.classes:
        raise UserError(f"{source.root}: its train and test images have different class names")
    kept, tested, validation = _as_split(train), _as_split(test), None
    if config.validation_images:
        kept, validation = _set_apart(kept, config.validation_images, classes)
    if config.train_images:
        kept = _part(kept, config.train_images, source)
    return Dataset(
        train=kept,
        test=tested,
        classes=train.classes,
        fingerprint=hashlib.sha256(f"{kept.fingerprint} {tested.fingerprint}".encode()).hexdigest(),
        validation=validation,
    )


def count_classes(config: DataConfig, channels: int) -> int:
    """Count the classes of a data set; no image is decoded."""
    return len(find_source(config).open_split("train", channels).classes)


def sample_evenly(split: Split, count: int) -> list[np.ndarray]:
    """Return `count` images of a split at even distances, whatever its order."""
    return [np.asarray(split.images[place]) for place in _places(split, count)]


def _places(split: Split, count: int) -> np.ndarray:
    return np.linspace(0, len(split) - 1, min(count, len(split))).astype(int)


def _part(split: Split, count: int, source: Source) -> Split:
    if count > len(split):
        raise UserError(
            f"data.train_images is {count}, but {source.root} has {len(split)} training images"
        )
    return _subset(split, _places(split, count))


def _set_apart(split: Split, count: int, classes: int) -> tuple[Split, Split]:
    """Return the rest of a split, and `count` images: as many of each class, from all over it.

    The choice depends on the labels alone, so that every run sets the same images apart.
    """
    chosen = []
    for label in range(classes):
        places = np.flatnonzero(split.labels == label)
        wanted = count // classes + (label < count % classes)
        if wanted >= len(places):
            raise UserError(
                f"data.validation_images is {count}, but class {label} has only "
                f"{len(places)} training images: some must remain"
            )
        chosen.append(places[np.linspace(0, len(places) - 1, wanted).astype(int)])
    apart = np.zeros(len(split), bool)
    apart[np.concatenate(chosen)] = True
    return _subset(split, np.flatnonzero(~apart)), _subset(split, np.flatnonzero(apart))


def _subset(split: Split, places: np.ndarray) -> Split:
    images, labels = np.asarray(split.images[places]), split.labels[places]
    content = hashlib.sha256(images.data)
    content.update(labels.data)
    return Split(images=images, labels=labels, fingerprint=content.hexdigest())


def load_split(
    config: DataConfig,
    split: SplitName,
    *,
    image_size: int,
    channels: int,
    classes: int | tuple[str, ...],
    progress: Progress | None = None,
    cache_dir: Path | None = None,
) -> Split:
    """Load one split; the other one may be missing.

    `classes` are how many there must be, or the names of a model's classes: then labels are
    the model's.
    """
    source = find_source(config)
    count = classes if isinstance(classes, int) else None
    decoded = _load(source, config, split, image_size, channels, count, progress, cache_dir)
    if isinstance(classes, int):
        return _as_split(decoded)
    matched = match_classes(decoded.classes, classes, where=str(source.root))
    return Split(
        images=decoded.images,
        labels=np.array(matched.places, np.int32)[decoded.labels],
        fingerprint=decoded.fingerprint,
        matching=matched.sentence,
    )


def _as_split(decoded: Decoded) -> Split:
    return Split(images=decoded.images, labels=decoded.labels, fingerprint=decoded.fingerprint)


def _load(
    source: Source,
    config: DataConfig,
    split: SplitName,
    image_size: int,
    channels: int,
    classes: int | None,
    progress: Progress | None,
    cache_dir: Path | None,
) -> Decoded:
    crop, fit = config.eval_crop, config.fit
    if split == "train":  # kept whole: augmentation cuts
        crop, fit = 1.0, replace(fit, edge=0)

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

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(f"decoding {split} images", done, total)

    settings: dict[str, Any] = {"image_size": image_size, "channels": channels, "crop": crop}
    if fit != ImageFit():
        settings["fit"] = encode(fit)
    key = _cache_key(source, split=split, **settings)
    decoded = cached(cache_dir or cache_folder(), key, decode, report)
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

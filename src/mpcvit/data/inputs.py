"""Images to classify: files, folders or arrays, made ready for a model."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.data.images import SUFFIXES, decode_image, fit_image, normalisation, normalise
from mpcvit.errors import UserError

Image = str | Path | np.ndarray


class Inputs(NamedTuple):
    """Images as a model takes them."""

    images: np.ndarray  # float32 [image, height, width, channel], normalised
    resized: int  # how many were not of the model's size


def list_pictures(paths: Sequence[str | Path]) -> list[Path]:
    """Return files as they are, and for a folder its pictures, sorted by name."""
    pictures: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            if not path.exists():
                raise UserError(f"there is no file {path}")
            pictures.append(path)
            continue
        found = sorted(entry for entry in path.iterdir() if is_picture(entry))
        if not found:
            raise UserError(f"the folder {path} holds no images")
        pictures += found
    return pictures


def is_picture(path: Path) -> bool:
    """Return whether a file's name is that of a picture, and not hidden."""
    is_named = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    return is_named and path.is_file()


def make_inputs(images: Sequence[Image], model: ModelConfig, data: DataConfig) -> Inputs:
    """Decode, resize and normalise files or uint8 arrays, as in evaluation."""
    if not len(images):
        raise UserError("there is no image")
    size, resized, fitted = model.image_size, 0, []
    for index, image in enumerate(images):
        pixels = _decode(image, index, model.channels)
        resized += pixels.shape[:2] != (size, size)
        fitted.append(fit_image(pixels, size, data.eval_crop, data.fit))
    constants = normalisation(data.mean, data.std, model.channels)
    return Inputs(normalise(np.stack(fitted), *constants), resized)


def _decode(image: Image, index: int, channels: int) -> np.ndarray:
    if not isinstance(image, np.ndarray):
        return decode_image(Path(image), channels=channels, where=str(image))
    if image.ndim == 2:
        image = image[:, :, None]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != channels:
        raise UserError(
            f"image {index} is an array of {image.dtype} {image.shape}, but uint8 "
            f"(height, width, {channels}) is expected"
        )
    return image

"""RandAugment in its increasing form: a larger magnitude always means a stronger change."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance

from mpcvit.data.augment import INTERPOLATIONS, from_pillow, to_pillow

_LARGEST = 10.0  # magnitudes lie in [0, 10]
_PROBABILITY = 0.5  # that a chosen operation is carried out
_LEVELS = np.arange(256)
_LUMA = np.array([19595, 38470, 7471])  # Pillow's weights of R, G, B, in 2**-16

Fill = tuple[int, ...]


def rand_augment(
    image: np.ndarray,
    rng: np.random.Generator,
    *,
    ops: int,
    magnitude: float,
    std: float,
    fill: Fill,
) -> np.ndarray:
    """Apply `ops` operations, each drawn from fifteen and carried out half of the time.

        level = clip(N(magnitude, std), 0, 10) / 10

    Geometric operations and the four enhancements change their direction by a fair
    coin; what moves in from outside has the colour `fill`. On grey images
    `colour` changes nothing, as there is no saturation; the others work as on RGB.
    """
    for _ in range(ops):
        operation = OPERATIONS[int(rng.random() * len(OPERATIONS))]
        if rng.random() >= _PROBABILITY:
            continue
        level = min(max(rng.normal(magnitude, std), 0.0), _LARGEST) / _LARGEST
        sign = 1 if rng.random() < 0.5 else -1
        interpolation = INTERPOLATIONS[rng.random() < 0.5]
        image = operation(image, Draw(level, sign, interpolation, fill))
    return image


class Draw(NamedTuple):
    """What was drawn for one operation; each takes from it what it needs."""

    level: float  # in [0, 1]
    sign: int  # 1 or -1
    interpolation: Image.Resampling
    fill: Fill


def auto_contrast(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Stretch each channel to [0, 255]."""
    return _map_channels(image, _stretch)


def equalise(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Flatten each channel's histogram."""
    return _map_channels(image, _flatten)


def invert(image: np.ndarray, draw: Draw) -> np.ndarray:
    return 255 - image


def posterise(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Keep 4 bits at level 0, none at level 1."""
    bits = 4 - int(draw.level * 4)
    return image & np.uint8(256 - 2 ** (8 - bits))


def solarise(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Invert what is at least as bright as a threshold: 256 at level 0, 0 at level 1."""
    return np.where(image < 256 - int(draw.level * 256), image, 255 - image)


def solarise_add(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Add up to 110 to the dark half of the range."""
    return image + np.uint8(draw.level * 110) * (image < 128)


def colour(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Move each pixel away from its own grey, or towards it."""
    if image.shape[-1] == 1:
        return image
    return from_pillow(ImageEnhance.Color(to_pillow(image)).enhance(_factor(draw)))


def contrast(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Move each pixel away from the image's mean grey, or towards it."""
    grey = image if image.shape[-1] == 1 else (image @ _LUMA + 2**15) >> 16
    mean = int(grey.mean() + 0.5)
    return _enhanced(mean + np.float32(_factor(draw)) * (_LEVELS - mean).astype(np.float32))[image]


def brightness(image: np.ndarray, draw: Draw) -> np.ndarray:
    return _enhanced(np.float32(_factor(draw)) * _LEVELS.astype(np.float32))[image]


def sharpness(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Move each pixel away from a 3 x 3 blur, or towards it."""
    return from_pillow(ImageEnhance.Sharpness(to_pillow(image)).enhance(_factor(draw)))


def rotate(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Turn about the centre by up to 30 degrees."""
    angle = math.radians(30 * draw.level * draw.sign)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = image.shape[1] / 2, image.shape[0] / 2
    return _affine(image, draw, (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y))


def shear_x(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Slant by up to 0.3 pixels per pixel."""
    return _affine(image, draw, (1, 0.3 * draw.level * draw.sign, 0, 0, 1, 0))


def shear_y(image: np.ndarray, draw: Draw) -> np.ndarray:
    return _affine(image, draw, (1, 0, 0, 0.3 * draw.level * draw.sign, 1, 0))


def translate_x(image: np.ndarray, draw: Draw) -> np.ndarray:
    """Shift by up to 45 % of the width."""
    return _affine(image, draw, (1, 0, 0.45 * draw.level * draw.sign * image.shape[1], 0, 1, 0))


def translate_y(image: np.ndarray, draw: Draw) -> np.ndarray:
    return _affine(image, draw, (1, 0, 0, 0, 1, 0.45 * draw.level * draw.sign * image.shape[0]))


OPERATIONS: tuple[Callable[[np.ndarray, Draw], np.ndarray], ...] = (
    *(auto_contrast, equalise, invert, rotate, posterise, solarise, solarise_add, colour),
    *(contrast, brightness, sharpness, shear_x, shear_y, translate_x, translate_y),
)


def _factor(draw: Draw) -> float:
    """How strongly to enhance: from 1 out to 1.9 or 0.1."""
    return max(0.1, 1 + 0.9 * draw.level * draw.sign)


def _affine(image: np.ndarray, draw: Draw, matrix: tuple[float, ...]) -> np.ndarray:
    picture = to_pillow(image)
    fill = draw.fill if picture.mode == "RGB" else draw.fill[0]
    moved = picture.transform(
        picture.size, Image.Transform.AFFINE, matrix, draw.interpolation, fillcolor=fill
    )
    return from_pillow(moved)


def _enhanced(levels: np.ndarray) -> np.ndarray:
    return np.clip(levels, 0, 255).astype(np.uint8)


def _map_channels(
    image: np.ndarray, table: Callable[[np.ndarray], np.ndarray | None]
) -> np.ndarray:
    """Map the levels of each channel by a table made from its histogram."""
    mapped = np.empty_like(image)
    for channel in range(image.shape[-1]):
        levels = image[..., channel]
        levels_table = table(np.bincount(levels.ravel(), minlength=256))
        mapped[..., channel] = levels if levels_table is None else levels_table[levels]
    return mapped


def _stretch(histogram: np.ndarray) -> np.ndarray | None:
    present = np.flatnonzero(histogram)
    low, high = int(present[0]), int(present[-1])
    if low == high:
        return None
    scale = 255 / (high - low)
    return np.clip(_LEVELS * scale - low * scale, 0, 255).astype(np.uint8)


def _flatten(histogram: np.ndarray) -> np.ndarray | None:
    brightest = histogram[np.flatnonzero(histogram)[-1]]
    step = int(histogram.sum() - brightest) // 255
    if step == 0:
        return None
    below = np.cumsum(histogram) - histogram
    return np.minimum((step // 2 + below) // step, 255).astype(np.uint8)

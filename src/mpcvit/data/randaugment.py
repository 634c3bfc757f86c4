"""RandAugment in its increasing form: a larger magnitude always means a stronger change."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from mpcvit.data.augment import INTERPOLATIONS, from_pillow, to_pillow

_LARGEST = 10.0  # magnitudes lie in [0, 10]
_PROBABILITY = 0.5  # that a chosen operation is carried out

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
    picture = None
    for _ in range(ops):
        operation = OPERATIONS[int(rng.random() * len(OPERATIONS))]
        if rng.random() >= _PROBABILITY:
            continue
        level = min(max(rng.normal(magnitude, std), 0.0), _LARGEST) / _LARGEST
        sign = 1 if rng.random() < 0.5 else -1
        interpolation = INTERPOLATIONS[rng.random() < 0.5]
        picture = to_pillow(image) if picture is None else picture
        picture = operation(picture, Draw(level, sign, interpolation, fill))
    return image if picture is None else from_pillow(picture)


class Draw(NamedTuple):
    """The random choices of one operation; each takes from it what it needs."""

    level: float  # in [0, 1]
    sign: int  # 1 or -1
    interpolation: Image.Resampling
    fill: Fill


def auto_contrast(image: Image.Image, draw: Draw) -> Image.Image:
    """Stretch each channel to [0, 255]."""
    return ImageOps.autocontrast(image)


def equalise(image: Image.Image, draw: Draw) -> Image.Image:
    """Flatten each channel's histogram."""
    return ImageOps.equalize(image)


def invert(image: Image.Image, draw: Draw) -> Image.Image:
    return ImageOps.invert(image)


def posterise(image: Image.Image, draw: Draw) -> Image.Image:
    """Keep 4 bits at level 0, none at level 1."""
    # not ImageOps.posterize, which refuses to keep no bit
    step = 2 ** (4 + int(draw.level * 4))
    return _map_levels(image, [value // step * step for value in range(256)])


def solarise(image: Image.Image, draw: Draw) -> Image.Image:
    """Invert what is at least as bright as a threshold: 256 at level 0, 0 at level 1."""
    return ImageOps.solarize(image, 256 - int(draw.level * 256))


def solarise_add(image: Image.Image, draw: Draw) -> Image.Image:
    """Add up to 110 to the dark half of the range."""
    added = int(draw.level * 110)
    return _map_levels(image, [value + added * (value < 128) for value in range(256)])


def colour(image: Image.Image, draw: Draw) -> Image.Image:
    """Move each pixel away from its own grey, or towards it."""
    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(_factor(draw))


def contrast(image: Image.Image, draw: Draw) -> Image.Image:
    """Move each pixel away from the image's mean grey, or towards it."""
    return ImageEnhance.Contrast(image).enhance(_factor(draw))


def brightness(image: Image.Image, draw: Draw) -> Image.Image:
    """Move each pixel away from black, or towards it."""
    return ImageEnhance.Brightness(image).enhance(_factor(draw))


def sharpness(image: Image.Image, draw: Draw) -> Image.Image:
    """Move each pixel away from a 3 x 3 blur, or towards it."""
    return ImageEnhance.Sharpness(image).enhance(_factor(draw))


def rotate(image: Image.Image, draw: Draw) -> Image.Image:
    """Turn about the centre by up to 30 degrees."""
    angle = math.radians(30 * draw.level * draw.sign)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = image.width / 2, image.height / 2
    return _affine(image, draw, (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y))


def shear_x(image: Image.Image, draw: Draw) -> Image.Image:
    """Slant by up to 0.3 pixels per pixel."""
    return _affine(image, draw, (1, 0.3 * draw.level * draw.sign, 0, 0, 1, 0))


def shear_y(image: Image.Image, draw: Draw) -> Image.Image:
    return _affine(image, draw, (1, 0, 0, 0.3 * draw.level * draw.sign, 1, 0))


def translate_x(image: Image.Image, draw: Draw) -> Image.Image:
    """Shift by up to 45 % of the width."""
    return _affine(image, draw, (1, 0, 0.45 * draw.level * draw.sign * image.width, 0, 1, 0))


def translate_y(image: Image.Image, draw: Draw) -> Image.Image:
    return _affine(image, draw, (1, 0, 0, 0, 1, 0.45 * draw.level * draw.sign * image.height))


OPERATIONS: tuple[Callable[[Image.Image, Draw], Image.Image], ...] = (
    *(auto_contrast, equalise, invert, rotate, posterise, solarise, solarise_add, colour),
    *(contrast, brightness, sharpness, shear_x, shear_y, translate_x, translate_y),
)


def _factor(draw: Draw) -> float:
    """Return how strongly to enhance: from 1 out to 1.9 or 0.1."""
    return max(0.1, 1 + 0.9 * draw.level * draw.sign)


def _map_levels(image: Image.Image, table: list[int]) -> Image.Image:
    return image.point(table * len(image.getbands()))


def _affine(image: Image.Image, draw: Draw, matrix: tuple[float, ...]) -> Image.Image:
    fill = draw.fill if image.mode == "RGB" else draw.fill[0]
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, draw.interpolation, fillcolor=fill
    )

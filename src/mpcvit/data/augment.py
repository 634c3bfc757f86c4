"""Augmentations of one image: crop, flip, erase, and RandAugment in its increasing form."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

_ATTEMPTS = 10  # to find a box that fits, before giving up
_ERASED_AREA = (0.02, 1 / 3)
_ERASED_RATIO = (0.3, 1 / 0.3)
INTERPOLATIONS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)


def random_resized_crop(
    image: np.ndarray,
    rng: np.random.Generator,
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> np.ndarray:
    """Cut out a random box and scale it back to the image's own size.

        area ~ U(scale) * height * width,  log(width / height of the box) ~ U(log(ratio))

    A box that does not fit is drawn again, ten times; then the largest central box
    within `ratio` is taken. Interpolation is bilinear or bicubic, by a fair coin.
    """
    height, width = image.shape[:2]
    left, top, box_width, box_height = _draw_box(height, width, rng, scale, ratio)
    interpolation = INTERPOLATIONS[rng.random() < 0.5]
    if (box_height, box_width) == (height, width):
        return image
    box = (left, top, left + box_width, top + box_height)
    return from_pillow(to_pillow(image).resize((width, height), interpolation, box))


def flip(image: np.ndarray, rng: np.random.Generator, *, probability: float) -> np.ndarray:
    """Mirror left and right, with some probability.

    >>> flip(np.array([[[1], [2]]], np.uint8), np.random.default_rng(0), probability=1).tolist()
    [[[2], [1]]]
    """
    return image[:, ::-1] if rng.random() < probability else image


def random_erasing(
    image: np.ndarray, rng: np.random.Generator, *, probability: float
) -> np.ndarray:
    """Fill one random box of a normalised image with standard normal noise.

    Box: 2 % to a third of the area, height / width log-uniform in [0.3, 3.33],
    smaller than the image both ways; drawn again up to ten times until it fits.
    """
    if rng.random() >= probability:
        return image
    height, width, channels = image.shape
    for _ in range(_ATTEMPTS):
        box_height, box_width = _draw_shape(height * width, rng, _ERASED_AREA, _ERASED_RATIO)
        if 0 < box_height < height and 0 < box_width < width:
            top = _draw_below(height - box_height + 1, rng)
            left = _draw_below(width - box_width + 1, rng)
            erased = image.copy()
            erased[top : top + box_height, left : left + box_width] = rng.standard_normal(
                (box_height, box_width, channels), np.float32
            )
            return erased
    return image


def to_pillow(image: np.ndarray) -> Image.Image:
    height, width, channels = image.shape
    # a third faster than Image.fromarray, which checks strides and type first
    return Image.frombytes("L" if channels == 1 else "RGB", (width, height), image.tobytes())


def from_pillow(image: Image.Image) -> np.ndarray:
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, -1)


def _draw_box(
    height: int,
    width: int,
    rng: np.random.Generator,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> tuple[int, int, int, int]:
    for _ in range(_ATTEMPTS):
        box_width, box_height = _draw_shape(height * width, rng, scale, ratio)
        if 0 < box_width <= width and 0 < box_height <= height:
            left = _draw_below(width - box_width + 1, rng)
            return left, _draw_below(height - box_height + 1, rng), box_width, box_height
    wanted = min(max(width / height, ratio[0]), ratio[1])
    box_width, box_height = min(width, round(height * wanted)), min(height, round(width / wanted))
    return (width - box_width) // 2, (height - box_height) // 2, box_width, box_height


def _draw_shape(
    area: int, rng: np.random.Generator, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int]:
    """Draw two sides with a random product and a random, log-uniform quotient."""
    wanted = area * (scale[0] + rng.random() * (scale[1] - scale[0]))
    quotient = ratio[0] * math.exp(rng.random() * math.log(ratio[1] / ratio[0]))
    return round(math.sqrt(wanted * quotient)), round(math.sqrt(wanted / quotient))


def _draw_below(stop: int, rng: np.random.Generator) -> int:
    # four times as fast as rng.integers, and as even for the sizes of images
    return int(rng.random() * stop)


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
    picture, operations = None, list(OPERATIONS.values())
    for _ in range(ops):
        operation = operations[int(rng.random() * len(operations))]
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

    @property
    def signed(self) -> float:
        return self.level * self.sign


def _rotate(image: Image.Image, draw: Draw) -> Image.Image:
    angle = math.radians(30 * draw.signed)
    cos, sin = math.cos(angle), math.sin(angle)
    x, y = image.width / 2, image.height / 2
    return _affine(image, draw, (cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y))


def _posterise(image: Image.Image, draw: Draw) -> Image.Image:
    # not ImageOps.posterize, which refuses to keep no bit
    step = 2 ** (4 + int(draw.level * 4))
    return _map_levels(image, [value // step * step for value in range(256)])


def _solarise_add(image: Image.Image, draw: Draw) -> Image.Image:
    added = int(draw.level * 110)
    return _map_levels(image, [value + added * (value < 128) for value in range(256)])


def _saturate(image: Image.Image, draw: Draw) -> Image.Image:
    return image if image.mode == "L" else ImageEnhance.Color(image).enhance(_factor(draw))


OPERATIONS: dict[str, Callable[[Image.Image, Draw], Image.Image]] = {
    # stretch each channel to [0, 255], or flatten its histogram
    "auto_contrast": lambda image, draw: ImageOps.autocontrast(image),
    "equalise": lambda image, draw: ImageOps.equalize(image),
    "invert": lambda image, draw: ImageOps.invert(image),
    # turn about the centre by up to 30 degrees
    "rotate": _rotate,
    # keep 4 bits at level 0, none at level 1
    "posterise": _posterise,
    # invert what is at least as bright as a threshold: 256 at level 0, 0 at level 1
    "solarise": lambda image, draw: ImageOps.solarize(image, 256 - int(draw.level * 256)),
    # add up to 110 to the dark half of the range
    "solarise_add": _solarise_add,
    # move each pixel away from its own grey, or towards it
    "colour": _saturate,
    # the same with the image's mean grey, with black, and with a 3 x 3 blur
    "contrast": lambda image, draw: ImageEnhance.Contrast(image).enhance(_factor(draw)),
    "brightness": lambda image, draw: ImageEnhance.Brightness(image).enhance(_factor(draw)),
    "sharpness": lambda image, draw: ImageEnhance.Sharpness(image).enhance(_factor(draw)),
    # slant by up to 0.3 pixels per pixel
    "shear_x": lambda image, draw: _affine(image, draw, (1, 0.3 * draw.signed, 0, 0, 1, 0)),
    "shear_y": lambda image, draw: _affine(image, draw, (1, 0, 0, 0.3 * draw.signed, 1, 0)),
    # shift by up to 45 % of the width, or of the height
    "translate_x": lambda image, draw: _affine(
        image, draw, (1, 0, 0.45 * draw.signed * image.width, 0, 1, 0)
    ),
    "translate_y": lambda image, draw: _affine(
        image, draw, (1, 0, 0, 0, 1, 0.45 * draw.signed * image.height)
    ),
}


def _factor(draw: Draw) -> float:
    """Return how strongly to enhance: from 1 out to 1.9 or 0.1."""
    return max(0.1, 1 + 0.9 * draw.signed)


def _map_levels(image: Image.Image, table: list[int]) -> Image.Image:
    return image.point(table * len(image.getbands()))


def _affine(image: Image.Image, draw: Draw, matrix: tuple[float, ...]) -> Image.Image:
    fill = draw.fill if image.mode == "RGB" else draw.fill[0]
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, draw.interpolation, fillcolor=fill
    )

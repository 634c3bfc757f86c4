"""Augmentations of one image: crop, flip, erase.

Each is a function of its arguments and of the generator it is handed. Images are
uint8 [height, width, channel] with one or three channels until `normalise`.
"""

import math

import numpy as np
from PIL import Image

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
    """Two sides with a random product and a random, log-uniform quotient."""
    wanted = area * (scale[0] + rng.random() * (scale[1] - scale[0]))
    quotient = ratio[0] * math.exp(rng.random() * math.log(ratio[1] / ratio[0]))
    return round(math.sqrt(wanted * quotient)), round(math.sqrt(wanted / quotient))


def _draw_below(stop: int, rng: np.random.Generator) -> int:
    # four times as fast as rng.integers, and as even for the sizes of images
    return int(rng.random() * stop)

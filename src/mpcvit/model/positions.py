"""Positions of patches, interpolated to another number of them."""

import math

import numpy as np
from PIL import Image

_TORCH_CUBIC = -0.75  # the constant of PyTorch's bicubic interpolation without antialiasing


def resize_positions(
    position: np.ndarray, tokens: int, patches: int, *, antialias: bool = True
) -> np.ndarray:
    """Interpolate positions to another square of patches, bicubic; those of leading tokens stay.

    `antialias` is how Pillow and timm do it; Hugging Face's older families do without.

    >>> resize_positions(np.ones((5, 3), np.float32), 10, 9).shape
    (10, 3)
    """
    kept = tokens - patches
    before, after = math.isqrt(len(position) - kept), math.isqrt(patches)
    grid = position[kept:].reshape(before, before, -1)
    if antialias:
        planes = [
            np.asarray(
                Image.fromarray(np.ascontiguousarray(grid[..., channel], np.float32)).resize(
                    (after, after), Image.Resampling.BICUBIC
                )
            )
            for channel in range(grid.shape[-1])
        ]
        resized = np.stack(planes, axis=-1)
    else:
        weights = _cubic_weights(before, after)
        resized = np.einsum("ri,cj,ijw->rcw", weights, weights, grid.astype(np.float64))
    return np.concatenate([position[:kept], resized.reshape(patches, -1).astype(np.float32)])


def _cubic_weights(before: int, after: int) -> np.ndarray:
    """Return the weight of each old place in each new one."""
    place = (np.arange(after) + 0.5) * before / after - 0.5
    floor, weights, a = np.floor(place).astype(int), np.zeros((after, before)), _TORCH_CUBIC
    for tap in (-1, 0, 1, 2):
        x = np.abs(floor + tap - place)
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((x - 5) * x + 8) * x * a - 4 * a
        old = np.clip(floor + tap, 0, before - 1)
        np.add.at(weights, (np.arange(after), old), np.where(x <= 1, near, far))
    return weights

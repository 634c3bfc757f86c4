"""Pictures that are unlike photographs, and that somebody will send all the same."""

import numpy as np

_LARGEST_SQUARE = 8


def draw_odd_picture(shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    """Draw a flat picture, a checkerboard of two colours, or noise.

    Half of them are saturated: their channels are 0 or 255.
    """
    height, width, channels = shape
    kind = rng.integers(3)
    if kind == 0:
        picture = np.broadcast_to(rng.integers(0, 256, channels), shape)
    elif kind == 1:
        side = rng.integers(1, _LARGEST_SQUARE + 1)
        rows, columns = np.indices((height, width)) // side
        picture = rng.integers(0, 256, (2, channels))[(rows + columns) % 2]
    else:
        picture = rng.integers(0, 256, shape)
    if rng.random() < 0.5:
        picture = (picture > 127) * 255
    return picture.astype(np.uint8)

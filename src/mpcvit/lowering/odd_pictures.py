"""Pictures that no training set holds, and that somebody will send."""

import numpy as np

_GREYS = (0, 64, 128, 192, 255)
_SQUARES = (1, 2, 4, 8)
_RANDOM = 4  # of each kind


def odd_pictures(size: int, channels: int) -> dict[str, np.ndarray]:
    """Flat, checkerboard, noise and saturated pictures by their names, as uint8 arrays."""
    shape = (size, size, channels)
    found = {f"flat {grey}": np.full(shape, grey, np.uint8) for grey in _GREYS}
    for channel in range(channels if channels > 1 else 0):
        picture = np.zeros(shape, np.uint8)
        picture[..., channel] = 255
        found[f"saturated channel {channel}"] = picture
    rows, columns = np.indices((size, size))
    for side in _SQUARES:
        squares = ((rows // side + columns // side) % 2 * 255).astype(np.uint8)
        found[f"checkerboard {side}"] = np.repeat(squares[..., None], channels, axis=2)
    rng = np.random.default_rng(0)
    for index in range(_RANDOM):
        found[f"noise {index}"] = rng.integers(0, 256, shape, np.uint8)
        found[f"saturated noise {index}"] = (rng.integers(0, 2, shape) * 255).astype(np.uint8)
    return found

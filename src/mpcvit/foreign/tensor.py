"""A tensor that still lies in its file."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Tensor:
    """Shape and dtype are known; the numbers are read when asked for.

    `dtype` is NumPy's name, or "bfloat16", which `read` widens to float32.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], np.ndarray]

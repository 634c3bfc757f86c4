"""safetensors files, with their tensors unread until asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Importing it teaches NumPy the name bfloat16.
import ml_dtypes  # noqa: F401
import numpy as np
from safetensors import SafetensorError, safe_open

from mpcvit.errors import UserError
from mpcvit.foreign.tensor import Tensor

_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def is_safetensors(path: Path) -> bool:
    """Return whether a file starts as the format does: eight bytes of length, then JSON."""
    with path.open("rb") as file:
        return path.suffix == ".safetensors" or file.read(9)[8:] == b"{"


@contextmanager
def open_safetensors(path: Path) -> Iterator[dict[str, Tensor]]:
    """Give a file's tensors by name; they can be read until the block ends."""
    try:
        file = safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise UserError(
            f"{path} is damaged or was cut short; copy or download it again ({error})"
        ) from error
    with file:
        names = file.keys()
        yield {name: _describe(file, name) for name in names}


def _describe(file: Any, name: str) -> Tensor:
    entry = file.get_slice(name)
    code = str(entry.get_dtype())
    dtype = _DTYPES.get(code, code)

    def read() -> np.ndarray:
        numbers = file.get_tensor(name)
        return numbers.astype(np.float32) if dtype == "bfloat16" else numbers

    return Tensor(tuple(entry.get_shape()), dtype, read)

"""PyTorch's zip files, read without PyTorch and without running their pickle.

A file holds `<root>/data.pkl`, which describes every object and names the
storages behind its tensors, and one uncompressed member per storage.
"""

import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mpcvit.errors import UserError
from mpcvit.foreign.pickled import InertObject, Name, read_pickle
from mpcvit.foreign.tensor import Tensor

_ZIP_START = b"PK\x03\x04"
_LEGACY_START = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."  # a pickled magic number
_PICKLE_START = b"\x80"
_ZIP_ERRORS = (
    *(zipfile.BadZipFile, RuntimeError, EOFError, OSError),
    *(ValueError, OverflowError, struct.error),
)

_LARGEST_PICKLE_BYTES = 2**24  # real ones stay below 2**20: the numbers lie elsewhere
_LARGEST_EXPANDED = 2**20  # entries of a tensor that repeats its storage's
_LARGEST_SIZE = 2**40  # of one axis, or stride
_MOST_AXES = 32  # NumPy's limit

_STORAGES = {
    "torch.DoubleStorage": "f8",
    "torch.FloatStorage": "f4",
    "torch.HalfStorage": "f2",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "i8",
    "torch.IntStorage": "i4",
    "torch.ShortStorage": "i2",
    "torch.CharStorage": "i1",
    "torch.ByteStorage": "u1",
    "torch.BoolStorage": "?",
    "torch.ComplexDoubleStorage": "c16",
    "torch.ComplexFloatStorage": "c8",
}


@contextmanager
def open_torch(path: Path) -> Iterator[Any]:
    """Give what `torch.save` wrote; its tensors can be read until the block ends."""
    _require_zip(path)
    try:
        archive = zipfile.ZipFile(path)
    except _ZIP_ERRORS as error:
        _refuse_damaged(path, error)
    with archive:
        yield _Content(path, archive).load()


def _require_zip(path: Path) -> None:
    with path.open("rb") as file:
        start = file.read(len(_LEGACY_START))
    if start.startswith(_ZIP_START):
        return
    if start == _LEGACY_START:
        raise UserError(
            f"{path} is in PyTorch's old format; load it with torch and torch.save it again, "
            "with PyTorch 1.6 or later"
        )
    if start.startswith(_PICKLE_START):
        raise UserError(f"{path} is a plain pickle, which is never read: use torch.save's format")
    raise UserError(f"{path} is neither a safetensors file nor one that torch.save wrote")


def _refuse_damaged(path: Path, error: Exception) -> NoReturn:
    raise UserError(
        f"{path} is damaged or was cut short; copy or download it again ({error})"
    ) from error


@dataclass(frozen=True, eq=False)
class _Storage:
    member: zipfile.ZipInfo
    code: str
    elements: int


class _Content:
    """One open archive: its objects and, on demand, its storages."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path = path
        self.archive = archive
        self.file_bytes = path.stat().st_size
        self.last_read: tuple[zipfile.ZipInfo, bytes] | None = None
        self.root = self._find_root()
        self.byteorder = self._find_byteorder()

    def load(self) -> Any:
        member = self._member("data.pkl")
        if member.file_size > _LARGEST_PICKLE_BYTES:
            raise UserError(
                f"{self.path} describes its tensors in {member.file_size:,} bytes, "
                f"but more than {_LARGEST_PICKLE_BYTES:,} are never read"
            )
        return read_pickle(
            self._read(member),
            str(self.path),
            builders={
                "collections.OrderedDict": self._make_ordered_dict,
                "torch._utils._rebuild_tensor_v2": self._make_tensor,
                "torch._utils._rebuild_parameter": self._make_parameter,
                "torch._utils._rebuild_parameter_with_state": self._make_parameter,
            },
            load_persistent=self._find_storage,
        )

    def _find_root(self) -> str:
        names = self.archive.namelist()
        roots = [name[: -len("data.pkl")] for name in names if name.endswith("/data.pkl")]
        if len(roots) != 1:
            raise UserError(f"{self.path} is a zip file, but not one that torch.save wrote")
        if any(name.startswith((f"{roots[0]}code/", f"{roots[0]}constants.pkl")) for name in names):
            raise UserError(
                f"{self.path} is a TorchScript program, not a checkpoint; "
                "torch.save the state_dict() of its model instead"
            )
        return roots[0]

    def _find_byteorder(self) -> str:
        """Return the byte order, which is little-endian in files from before PyTorch 2.1."""
        if f"{self.root}byteorder" not in self.archive.NameToInfo:
            return "<"
        order = self._read(self._member("byteorder"))
        if order not in (b"little", b"big"):
            _refuse_damaged(self.path, ValueError(f"byte order {order[:16]!r}"))
        return "<" if order == b"little" else ">"

    def _member(self, name: str) -> zipfile.ZipInfo:
        try:
            member = self.archive.getinfo(f"{self.root}{name}")
        except KeyError as error:
            _refuse_damaged(self.path, error)
        if member.compress_type != zipfile.ZIP_STORED:
            raise UserError(
                f"{self.path} is compressed, which torch.save never does: "
                f"unpack {member.filename!r} and the rest, and zip them without compression"
            )
        if member.file_size != member.compress_size or member.file_size > self.file_bytes:
            _refuse_damaged(self.path, ValueError(f"{member.filename!r} has an impossible size"))
        return member

    def _read(self, member: zipfile.ZipInfo) -> bytes:
        """Return a member's checked bytes; the last are kept, as tensors may share them."""
        if self.last_read is None or self.last_read[0] is not member:
            try:
                self.last_read = member, self.archive.read(member)
            except _ZIP_ERRORS as error:
                _refuse_damaged(self.path, error)
        return self.last_read[1]

    def _find_storage(self, identity: Any) -> Any:
        match identity:
            case ("storage", Name() as kind, str() as key, _, int() as elements):
                pass
            case _:
                raise ValueError("a storage without name or size")
        if kind.path not in _STORAGES:
            return InertObject(kind.path)
        code = _STORAGES[kind.path]
        member = self._member(f"data/{key}")
        if member.file_size != elements * _item_bytes(code):
            needed = elements * _item_bytes(code)
            _refuse_damaged(
                self.path,
                ValueError(f"{member.filename!r} has {member.file_size:,} of {needed:,} bytes"),
            )
        return _Storage(member, code, elements)

    @staticmethod
    def _make_ordered_dict(arguments: tuple[Any, ...]) -> Any:
        if arguments:
            raise ValueError("an OrderedDict that is made of arguments")
        return {}

    @staticmethod
    def _make_parameter(arguments: tuple[Any, ...]) -> Any:
        return arguments[0]

    def _make_tensor(self, arguments: tuple[Any, ...]) -> Any:
        match arguments:
            case (InertObject() as storage, *_):
                return storage
            case (_Storage() as storage, int() as offset, tuple() as shape, tuple() as steps, *_):
                self._check_bounds(storage, offset, shape, steps)
            case _:
                raise ValueError("a tensor without storage, shape or strides")
        name = storage.code if storage.code == "bfloat16" else np.dtype(storage.code).name
        return Tensor(shape, name, lambda: self._read_tensor(storage, offset, shape, steps))

    def _check_bounds(
        self, storage: _Storage, offset: int, shape: tuple[Any, ...], steps: tuple[Any, ...]
    ) -> None:
        sizes = (offset, *shape, *steps)
        if len(shape) != len(steps) or any(type(size) is not int for size in sizes):
            raise ValueError("a tensor whose shape and strides differ in length")
        if (
            len(shape) > _MOST_AXES
            or min(sizes) < 0
            or max(sizes) > _LARGEST_SIZE
            or math.prod(shape) > max(storage.elements, _LARGEST_EXPANDED)
            or _last_place(offset, shape, steps) >= storage.elements
        ):
            raise UserError(
                f"{self.path} is damaged: it describes a tensor that does not fit its storage "
                f"of {storage.elements:,} numbers; copy or download it again"
            )

    def _read_tensor(
        self, storage: _Storage, offset: int, shape: tuple[int, ...], steps: tuple[int, ...]
    ) -> np.ndarray:
        wide = storage.code == "bfloat16"
        dtype = np.dtype(f"{self.byteorder}{'u2' if wide else storage.code}")
        if 0 in shape:
            return np.zeros(shape, "f4" if wide else storage.code)
        numbers = np.frombuffer(self._read(storage.member), dtype)[offset:]
        strides = tuple(step * dtype.itemsize for step in steps)
        view = np.lib.stride_tricks.as_strided(numbers, shape, strides, writeable=False)
        if wide:  # bfloat16 is the upper half of a float32
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(dtype.newbyteorder("="))


def _last_place(offset: int, shape: tuple[int, ...], steps: tuple[int, ...]) -> int:
    """Return where in its storage a tensor's last number lies; -1 for a tensor without numbers.

    >>> _last_place(1, (2, 3), (4, 1)), _last_place(1, (2, 0), (4, 1))
    (7, -1)
    """
    if 0 in shape:
        return -1
    return offset + sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


def _item_bytes(code: str) -> int:
    return 2 if code == "bfloat16" else np.dtype(code).itemsize

"""CIFAR-10 and CIFAR-100 in their binary form, packed or unpacked."""

import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpcvit.artifacts.config import DataSource
from mpcvit.data.images import match_channels
from mpcvit.data.sources.base import Example, Examples, SplitName
from mpcvit.errors import UserError

_PIXEL_BYTES = 3 * 32 * 32
_ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".tar")
_LARGEST_MEMBER_BYTES = 1 << 28  # CIFAR-100's train.bin, the largest real one, has 154 MB
_PICKLED = (frozenset(("data_batch_1",)), frozenset(("train", "meta")))


@dataclass(frozen=True, kw_only=True)
class _Layout:
    files: dict[SplitName, tuple[str, ...]]
    names: str
    classes: int
    label_bytes: int  # the last of them is the label

    @property
    def record_bytes(self) -> int:
        return self.label_bytes + _PIXEL_BYTES


_LAYOUTS = (
    _Layout(
        files={
            "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
            "test": ("test_batch.bin",),
        },
        names="batches.meta.txt",
        classes=10,
        label_bytes=1,
    ),
    _Layout(
        files={"train": ("train.bin",), "test": ("test.bin",)},
        names="fine_label_names.txt",
        classes=100,
        label_bytes=2,  # coarse, then fine
    ),
)
_FOLDERS = ("", "cifar-10-batches-bin", "cifar-100-binary")
_PICKLED_FOLDERS = ("", "cifar-10-batches-py", "cifar-100-python")


@dataclass(frozen=True)
class CifarSource:
    """Records of label bytes and 32 x 32 pixels, one colour plane after the other."""

    root: Path
    kind = DataSource.CIFAR_BINARY

    @staticmethod
    def fits(root: Path) -> bool:
        if root.is_file():
            return root.name.endswith(_ARCHIVE_SUFFIXES)
        return _find_folder(root) is not None or _is_pickled(root)

    def files(self) -> tuple[Path, ...]:
        if self.root.is_file():
            return (self.root,)
        folder = _find_folder(self.root)
        if folder is None:
            return ()
        return tuple(path for path in sorted(folder.iterdir()) if path.suffix in (".bin", ".txt"))

    def open_split(self, split: SplitName, channels: int) -> Examples:
        members = self._members(split)
        layout = next((one for one in _LAYOUTS if members.keys() & set(one.files[split])), None)
        if layout is None:
            raise UserError(
                f"{self.root} holds no {split} file of CIFAR-10 or CIFAR-100 in binary form: "
                f"looked for {' and '.join(one.files[split][0] for one in _LAYOUTS)}"
            )
        for name in layout.files[split]:
            self._refuse_size(name, members.get(name), layout.record_bytes)
        return Examples(
            classes=self._class_names(layout, members),
            count=sum(len(members[name]) // layout.record_bytes for name in layout.files[split]),
            stream=self._examples(split, layout, members, channels),
        )

    def _members(self, split: SplitName) -> dict[str, bytes]:
        """Read what a split needs, by plain name; nothing is ever written to disk."""
        wanted = {name for one in _LAYOUTS for name in (*one.files[split], one.names)}
        if self.root.is_file():
            return _read_archive(self.root, wanted)
        if (folder := _find_folder(self.root)) is None:
            if _is_pickled(self.root):
                raise _refuse_pickle(self.root)
            return {}
        try:
            return {
                path.name: path.read_bytes() for path in folder.iterdir() if path.name in wanted
            }
        except OSError as error:
            raise UserError(f"cannot read {folder}: {error.strerror or error}") from error

    def _refuse_size(self, name: str, data: bytes | None, record_bytes: int) -> None:
        if data is None:
            raise UserError(f"{self.root} lacks {name}")
        if not data or len(data) % record_bytes:
            raise UserError(
                f"{name} in {self.root} has {len(data):,} bytes, which is not a whole number "
                f"of records of {record_bytes:,} bytes; download it again"
            )

    def _class_names(self, layout: _Layout, members: dict[str, bytes]) -> tuple[str, ...]:
        text = members.get(layout.names, b"").decode("utf-8", errors="replace")
        names = tuple(line.strip() for line in text.splitlines() if line.strip())
        if names and len(names) != layout.classes:
            raise UserError(
                f"{layout.names} in {self.root} has {len(names)} names, not {layout.classes}"
            )
        return names or tuple(str(label) for label in range(layout.classes))

    def _examples(
        self, split: SplitName, layout: _Layout, members: dict[str, bytes], channels: int
    ) -> Iterator[Example]:
        for name in layout.files[split]:
            records = np.frombuffer(members[name], np.uint8).reshape(-1, layout.record_bytes)
            for row, record in enumerate(records):
                where = f"record {row} of {name} in {self.root}"
                planes = record[layout.label_bytes :].reshape(3, 32, 32)
                image = match_channels(planes.transpose(1, 2, 0), channels=channels, where=where)
                yield Example(image, int(record[layout.label_bytes - 1]), where)


def _find_folder(root: Path) -> Path | None:
    for folder in (root / name for name in _FOLDERS):
        if any((folder / one.files[split][0]).is_file() for one in _LAYOUTS for split in one.files):
            return folder
    return None


def _is_pickled(root: Path) -> bool:
    folders = [root / name for name in _PICKLED_FOLDERS]
    return any(
        all((folder / name).is_file() for name in names) for folder in folders for names in _PICKLED
    )


def _refuse_pickle(root: Path) -> UserError:
    return UserError(
        f"{root} is the Python version of CIFAR, whose pickles can run any code when read; "
        "take the binary version (cifar-10-binary.tar.gz or cifar-100-binary.tar.gz)"
    )


def _read_archive(path: Path, wanted: set[str]) -> dict[str, bytes]:
    members: dict[str, bytes] = {}
    found: set[str] = set()
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = Path(member.name).name
                if not member.isreg():
                    continue
                found.add(name)
                if name not in wanted:
                    continue
                if member.size > _LARGEST_MEMBER_BYTES:
                    raise UserError(f"{name} in {path} has {member.size:,} bytes: not CIFAR's")
                if (file := archive.extractfile(member)) is not None:
                    members[name] = file.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        raise UserError(f"{path} is not a whole tar archive: {error}; download it again") from error
    if not members and any(names <= found for names in _PICKLED):
        raise _refuse_pickle(path)
    return members

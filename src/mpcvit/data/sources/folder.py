"""Picture files in one folder per class: train/<class>/, test/<class>/."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.config import DataSource
from mpcvit.data.images import SUFFIXES, decode_image
from mpcvit.data.sources.base import Example, Examples, SplitName
from mpcvit.errors import UserError

_FOLDERS: dict[SplitName, tuple[str, ...]] = {
    "train": ("train",),
    "test": ("test", "val", "validation"),
}


@dataclass(frozen=True)
class FolderSource:
    """Class names are the folders' names, in sorted order."""

    root: Path
    kind = DataSource.FOLDER

    @staticmethod
    def fits(root: Path) -> bool:
        return any((root / name).is_dir() for names in _FOLDERS.values() for name in names)

    def files(self) -> tuple[Path, ...]:
        pictures: list[Path] = []
        for split in _FOLDERS:
            if (folder := self._folder(split)) is not None:
                pictures += [path for name in _classes(folder) for path in _pictures(folder / name)]
        return tuple(pictures)

    def open_split(self, split: SplitName, channels: int) -> Examples:
        folder = self._folder(split)
        if folder is None:
            looked_for = ", ".join(f"{name}/" for name in _FOLDERS[split])
            raise UserError(f"{self.root} has no {split} images: looked for {looked_for}")
        classes = _classes(folder)
        self._refuse_mismatch()
        pictures = [
            (path, label) for label, name in enumerate(classes) for path in _pictures(folder / name)
        ]
        for name in classes:
            if not _pictures(folder / name):
                raise UserError(f"the class folder {folder / name} holds no images")
        return Examples(classes=classes, count=len(pictures), stream=_examples(pictures, channels))

    def _folder(self, split: SplitName) -> Path | None:
        found = (self.root / name for name in _FOLDERS[split])
        return next((folder for folder in found if folder.is_dir()), None)

    def _refuse_mismatch(self) -> None:
        train, test = self._folder("train"), self._folder("test")
        if train is None or test is None:
            return
        for one, other in ((train, test), (test, train)):
            if missing := sorted(set(_classes(one)) - set(_classes(other))):
                raise UserError(f"{other} lacks the class folder '{missing[0]}', which {one} has")


def holds_pictures(root: Path) -> bool:
    """Say whether pictures lie in a folder, or in folders below it that are no data set."""
    return root.is_dir() and any(
        _pictures(own) for own in (root, *map(root.joinpath, _classes(root)))
    )


def _classes(folder: Path) -> tuple[str, ...]:
    return tuple(
        sorted(
            path.name
            for path in folder.iterdir()
            if path.is_dir() and not path.name.startswith(".")
        )
    )


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    )


def _examples(pictures: list[tuple[Path, int]], channels: int) -> Iterator[Example]:
    for path, label in pictures:
        yield Example(decode_image(path, channels=channels, where=str(path)), label, str(path))

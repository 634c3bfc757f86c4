"""scikit-learn's handwritten digits: 1,797 grey images of 8 x 8, no download."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mpcvit.artifacts.config import DataSource
from mpcvit.data.images import match_channels
from mpcvit.data.sources.base import Example, Examples, SplitName
from mpcvit.errors import needs_extra

_BRIGHTEST = 16  # the data set counts ink in 17 steps
_TEST_SHARE = 5  # one image in five


@dataclass(frozen=True)
class DigitsSource:
    """Split by content: in each class, the fifth of the images with the lowest SHA-256."""

    kind = DataSource.DIGITS
    root = Path("digits")

    def files(self) -> tuple[Path, ...]:
        return ()

    def open_split(self, split: SplitName, channels: int) -> Examples:
        images, labels = _read()
        is_test = _choose_test(images, labels)
        chosen = np.flatnonzero(is_test if split == "test" else ~is_test)
        return Examples(
            classes=tuple(str(digit) for digit in range(10)),
            count=len(chosen),
            stream=_examples(images, labels, chosen, channels),
        )


def _read() -> tuple[np.ndarray, np.ndarray]:
    with needs_extra("train", "the data set of digits"):
        from sklearn.datasets import load_digits
    ink, labels = load_digits(return_X_y=True)
    levels = np.asarray(ink, np.uint16).reshape(-1, 8, 8, 1)
    return ((levels * 255 + _BRIGHTEST // 2) // _BRIGHTEST).astype(np.uint8), np.asarray(labels)


def _choose_test(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Mark the test images, by a rule that no library's random numbers can move."""
    hashes = np.array([hashlib.sha256(image.tobytes()).hexdigest() for image in images])
    is_test = np.zeros(len(images), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = members[np.argsort(hashes[members], kind="stable")]
        is_test[order[: round(len(order) / _TEST_SHARE)]] = True
    return is_test


def _examples(
    images: np.ndarray, labels: np.ndarray, chosen: np.ndarray, channels: int
) -> Iterator[Example]:
    for index in chosen:
        where = f"digit {index}"
        image = match_channels(images[index], channels=channels, where=where)
        yield Example(image, int(labels[index]), where)

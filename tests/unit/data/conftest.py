import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mpcvit.artifacts.config import AugmentConfig, DataConfig
from mpcvit.data import Dataset, Split, load_dataset
from mpcvit.storage import CACHE_VARIABLE


@pytest.fixture(scope="session")
def random_pixels() -> Callable[..., np.ndarray]:
    def make(seed: int, height: int = 7, width: int = 7, channels: int = 3) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)

    return make


@pytest.fixture(scope="session")
def encode() -> Callable[..., bytes]:
    """Pixels, or a Pillow image, as the bytes of a file."""

    def make(picture: np.ndarray | Image.Image, kind: str = "PNG", **options: Any) -> bytes:
        if isinstance(picture, np.ndarray):
            picture = Image.fromarray(picture[..., 0] if picture.shape[-1] == 1 else picture)
        buffer = io.BytesIO()
        picture.save(buffer, kind, **options)
        return buffer.getvalue()

    return make


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def load(cache_dir: Path) -> Callable[..., Dataset]:
    """`load_dataset` for RGB data sets of 7 x 7 with two classes, unless told otherwise."""

    def loader(path: Path | str = "", config: DataConfig | None = None, **changes: Any) -> Dataset:
        settings = {"image_size": 7, "channels": 3, "classes": 2, **changes}
        return load_dataset(replace(config or DataConfig(), path=str(path)), **settings)

    return loader


@pytest.fixture(scope="session")
def small_split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """61 random images of 11 x 13 in five classes, mapped from disk."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("split")
    np.save(folder / "images.npy", rng.integers(0, 256, (61, 11, 13, 3), dtype=np.uint8))
    np.save(folder / "labels.npy", rng.integers(0, 5, 61, dtype=np.int32))
    return Split(
        images=np.load(folder / "images.npy", mmap_mode="r"),
        labels=np.load(folder / "labels.npy", mmap_mode="r"),
    )


@pytest.fixture(scope="session")
def everything() -> AugmentConfig:
    """Every augmentation at once."""
    return AugmentConfig(
        crop_scale=(0.5, 1.0),
        flip=0.5,
        rand_augment_ops=2,
        erasing=0.5,
        mixup=0.8,
        cutmix=1.0,
        label_smoothing=0.1,
    )

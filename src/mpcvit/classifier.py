"""Classifier: a checkpoint, ready to be called on images."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mpcvit.arch import Architecture
from mpcvit.checkpoint import Checkpoint
from mpcvit.config import ModelConfig
from mpcvit.data import decode_image, fit_image, normalisation, normalise
from mpcvit.errors import UserError
from mpcvit.model.vit import ViT


class Classifier:
    """A trained model in plaintext.

    Call it with normalised float32 images [batch, height, width, channel], as
    `preprocess` makes them, to get logits [batch, classes].
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.model

    @property
    def architecture(self) -> Architecture:
        return self.checkpoint.architecture

    @property
    def classes(self) -> tuple[str, ...]:
        return self.checkpoint.classes

    def __call__(self, images: Any) -> np.ndarray:
        images = np.asarray(images, np.float32)
        size, channels = self.config.image_size, self.config.channels
        if images.ndim != 4 or images.shape[1:] != (size, size, channels):
            raise UserError(
                f"images have shape {images.shape}, but (batch, {size}, {size}, {channels}) is "
                "expected; preprocess() makes such arrays"
            )
        return np.asarray(self._forward(self.checkpoint.parameters, images)[0])

    def preprocess(self, images: Sequence[str | Path | np.ndarray]) -> np.ndarray:
        """Decode, resize and normalise files or uint8 arrays, as in evaluation."""
        if isinstance(images, str | Path):
            images = [images]
        pixels = [
            fit_image(self._decode(image, index), self.config.image_size, self._crop)
            for index, image in enumerate(images)
        ]
        if not pixels:
            raise UserError("there is no image to preprocess")
        data = self.checkpoint.data
        return normalise(
            np.stack(pixels), *normalisation(data.mean, data.std, self.config.channels)
        )

    @property
    def _crop(self) -> float:
        return self.checkpoint.data.eval_crop

    def _decode(self, image: str | Path | np.ndarray, index: int) -> np.ndarray:
        channels = self.config.channels
        if not isinstance(image, np.ndarray):
            return decode_image(Path(image), channels=channels, where=str(image))
        if image.ndim == 2:
            image = image[:, :, None]
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != channels:
            raise UserError(
                f"image {index} is an array of {image.dtype} {image.shape}, but uint8 "
                f"(height, width, {channels}) is expected"
            )
        return image

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        model = ViT(self.config, self.architecture)
        return jax.jit(lambda parameters, images: model.apply({"params": parameters}, images))


def load(path: str | Path) -> Classifier:
    """Open a checkpoint for use."""
    return Classifier(Checkpoint.load(Path(path)))

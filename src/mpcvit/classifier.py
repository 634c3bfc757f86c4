"""Classifier: a checkpoint, ready to be called on images."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.lowering.program import SecureProgram, load_model
from mpcvit.model.checkpoint import Checkpoint
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
        return make_inputs(images, self.config, self.checkpoint.data).images

    @cached_property
    def _forward(self) -> Callable[..., Any]:
        model = ViT(self.config, self.architecture)
        return jax.jit(lambda parameters, images: model.apply({"params": parameters}, images))


def load(path: str | Path) -> Classifier | SecureProgram:
    """Open a checkpoint or a lowered program for use; both are called on images."""
    model = load_model(Path(path))
    return Classifier(model) if isinstance(model, Checkpoint) else model

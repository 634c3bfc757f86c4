"""Plain training: an architecture on labels alone, from scratch or from a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import MODEL_FILE, Environment, Provenance
from mpcvit.codec import encode
from mpcvit.data import Batch, Dataset
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.start import start_from
from mpcvit.model.vit import ViT, init_parameters
from mpcvit.train.devices import DTYPES
from mpcvit.train.evaluate import Evaluation
from mpcvit.train.loop import Observer, fit
from mpcvit.train.losses import cross_entropy, in_top
from mpcvit.train.statistics import Statistics, layer_share, learn, measure
from mpcvit.train.step import Outcome


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """The task of learning labels."""

    config: Config
    architecture: Architecture
    classes: tuple[str, ...]
    data_fingerprint: str
    origin: str = "trained"
    start: Checkpoint | None = None

    @property
    def model(self) -> ViT:
        train = self.config.train
        dtype = DTYPES[train.precision]
        return ViT(self.config.model, self.architecture, dtype=dtype, remat=train.remat)

    @property
    def teacher_digest(self) -> str:
        """Return the digest of the teacher's parameters, or an empty string."""
        return ""

    def identity(self) -> dict[str, Any]:
        return {
            "architecture": self.architecture.digest(),
            "data_fingerprint": self.data_fingerprint,
            **identity_of(self.start),
        }

    def init(self, seed: int) -> Any:
        fresh = init_parameters(self.config.model, self.architecture, seed)
        if self.start is None:
            return fresh
        return start_from(self.start, fresh, self.config.model, self.classes).parameters

    def frozen(self) -> Any:
        return {}

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[jax.Array, Outcome]:
        share = layer_share(self.config.train, epoch)
        logits, _, statistics = learn(self.model, parameters, batch.images, rng, share)
        loss = cross_entropy(logits, batch.targets).mean()
        top1 = in_top(logits, jnp.argmax(batch.targets, axis=-1), 1).sum()
        return loss, Outcome({"top1": top1}, statistics)

    def statistics(self, parameters: Any, images: jax.Array) -> Statistics:
        return measure(self.model, parameters, images)

    def project(self, parameters: Any) -> Any:
        return parameters

    def logits(self, parameters: Any, images: jax.Array) -> jax.Array:
        return self.model.apply({"params": parameters}, images)[0]

    def epoch_values(self, parameters: Any) -> dict[str, Any]:
        return {}

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        Checkpoint(
            model=self.config.model,
            architecture=self.architecture,
            data=self.config.data,
            classes=self.classes,
            parameters=parameters,
            provenance=Provenance(
                origin=self.origin,
                environment=Environment.current(),
                config=encode(self.config),
                data_fingerprint=self.data_fingerprint,
                started_from="" if self.start is None else self.start.parameter_digest,
                teacher=self.teacher_digest,
                metrics=evaluation.as_metrics(),
            ),
        ).save(folder / MODEL_FILE)


def identity_of(start: Checkpoint | None) -> dict[str, str]:
    """Return what a start adds to the identity of a run: nothing, or a digest."""
    return {} if start is None else {"start": start.parameter_digest}


def train(
    config: Config,
    dataset: Dataset,
    folder: Path,
    *,
    architecture: Architecture | None = None,
    start: Checkpoint | None = None,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> Checkpoint:
    """Train from scratch or from a checkpoint, or resume, and return the final checkpoint."""
    model = config.model
    task = Supervised(
        config=config,
        architecture=architecture
        or Architecture.uniform(model.attention, depth=model.depth, heads=model.heads),
        classes=dataset.classes,
        data_fingerprint=dataset.fingerprint,
        start=start,
    )
    fit(task, config, dataset, folder, resume=resume, observers=observers)
    return Checkpoint.load(folder / MODEL_FILE)

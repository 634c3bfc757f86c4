"""Plain training: an architecture on labels alone, from scratch or from a checkpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import MODEL_FILE
from mpcvit.data import Batch, Dataset
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.train.evaluate import Evaluation, cross_entropy, in_top
from mpcvit.train.loop import Observer, fit
from mpcvit.train.statistics import learn
from mpcvit.train.step import Outcome, Task


@dataclass(frozen=True, kw_only=True)
class Supervised(Task):
    """The task of learning labels."""

    architecture: Architecture
    origin: str = "trained"

    @property
    def form(self) -> Architecture:
        return self.architecture

    @property
    def teacher_digest(self) -> str:
        """Return the digest of the teacher's parameters, or an empty string."""
        return ""

    def identity(self) -> dict[str, Any]:
        return {"architecture": self.architecture.digest(), **super().identity()}

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[jax.Array, Outcome]:
        share = self.layer_share(epoch)
        learnt = learn(self.model, parameters, batch.images, rng, share)
        loss = cross_entropy(learnt.logits, batch.targets).mean() + self.outlier_loss(learnt)
        top1 = in_top(learnt.logits, jnp.argmax(batch.targets, axis=-1), 1).sum()
        return loss, Outcome({"top1": top1}, learnt.statistics)

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        Checkpoint(
            model=self.config.model,
            architecture=self.architecture,
            data=self.config.data,
            classes=self.classes,
            parameters=parameters,
            provenance=self.provenance(self.origin, evaluation, self.teacher_digest),
        ).save(folder / MODEL_FILE)


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

"""Retraining: an architecture from scratch, on labels and on a teacher."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mpcvit.arch import Architecture
from mpcvit.checkpoint import Checkpoint, digest, flatten_parameters
from mpcvit.config import Config
from mpcvit.data import Batch, Dataset
from mpcvit.errors import UserError
from mpcvit.model.layers import default_init
from mpcvit.model.vit import ViT
from mpcvit.optim.evaluate import Evaluation
from mpcvit.optim.loop import Observer, fit
from mpcvit.optim.losses import cross_entropy, divergence, in_top, token_distance
from mpcvit.optim.step import Metrics
from mpcvit.records import MODEL_FILE
from mpcvit.train.supervised import Supervised


@dataclass(frozen=True, kw_only=True)
class Distilled(Supervised):
    """The task of learning labels, a teacher's logits and its last tokens.

        loss = chi CE + beta KL(student / T, teacher / T) + gamma |tokens - teacher's tokens|^2

    Where the teacher is wider or narrower, a learned projection brings the
    student's tokens to its width; it serves training alone and is not saved.
    """

    teacher: Checkpoint

    def subject(self) -> dict[str, str]:
        teacher = digest(flatten_parameters(self.teacher.parameters))
        return {**super().subject(), "teacher": teacher}

    def init(self, seed: int) -> Any:
        parameters = {"student": super().init(seed)}
        width, wanted = self.config.model.width, self.teacher.model.width
        if width != wanted:
            rng = jax.random.fold_in(jax.random.key(seed), 1)
            parameters["projection"] = {"kernel": default_init(rng, (width, wanted))}
        return parameters

    def frozen(self) -> Any:
        return self.teacher.parameters

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        weights = self.config.distill
        logits, tokens = _outputs(
            self.model.apply(
                {"params": parameters["student"]}, batch.images, train=True, rngs={"dropout": rng}
            )
        )
        teacher = ViT(self.teacher.model, self.teacher.architecture, dtype=self.model.dtype)
        wanted_logits, wanted = _outputs(teacher.apply({"params": frozen}, batch.images))
        if "projection" in parameters:
            tokens = tokens @ parameters["projection"]["kernel"]
        terms = {
            "ce": (weights.ce_weight, cross_entropy(logits, batch.targets)),
            "logits": (
                weights.logits_weight,
                divergence(logits, wanted_logits, weights.temperature),
            ),
            "feature": (weights.feature_weight, token_distance(tokens, wanted)),
        }
        kept = {name: (weight, term) for name, (weight, term) in terms.items() if weight > 0}
        loss = sum(weight * term.mean() for weight, term in kept.values())
        metrics = {name: term.sum() for name, (_, term) in kept.items()}
        metrics["top1"] = in_top(logits, jnp.argmax(batch.targets, axis=-1), 1).sum()
        return jnp.asarray(loss), metrics

    def logits(self, parameters: Any, images: jax.Array) -> jax.Array:
        return super().logits(parameters["student"], images)

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        super().save(folder, parameters["student"], evaluation)


def _outputs(result: Any) -> tuple[jax.Array, jax.Array]:
    """Logits and last tokens, in float32 whatever the computing type."""
    logits, named = result
    return logits, named["features"].astype(jnp.float32)


def retrain(
    config: Config,
    dataset: Dataset,
    folder: Path,
    *,
    architecture: Architecture,
    teacher: Checkpoint,
    resume: bool = False,
    observers: Sequence[Observer] = (),
) -> Checkpoint:
    """Train an architecture with distillation, for `distill.epochs`."""
    refuse_teacher(config, dataset.classes, teacher)
    config = replace(config, train=replace(config.train, epochs=config.distill.epochs))
    task = Distilled(
        config=config,
        architecture=architecture,
        classes=dataset.classes,
        data_fingerprint=dataset.fingerprint,
        origin="retrained with distillation",
        teacher=teacher,
    )
    fit(task, config, dataset, folder, resume=resume, observers=observers)
    return Checkpoint.load(folder / MODEL_FILE)


def refuse_teacher(config: Config, classes: tuple[str, ...], teacher: Checkpoint) -> None:
    """Refuse a teacher that sees other images, other tokens or other classes."""
    ours, theirs = config.model, teacher.model
    if theirs.classes != ours.classes:
        raise UserError(
            f"the teacher knows {theirs.classes} classes, but the model has {ours.classes}"
        )
    if teacher.classes != classes and not all(name.isdigit() for name in teacher.classes):
        raise UserError(
            f"the teacher's classes begin with {teacher.classes[0]!r}, but the data's with "
            f"{classes[0]!r}: their order must be the same"
        )
    for what, own, other in (
        ("images of {} pixels", ours.image_size, theirs.image_size),
        ("images of {} channels", ours.channels, theirs.channels),
        ("patches of {} pixels", ours.patch_size, theirs.patch_size),
    ):
        if own != other:
            raise UserError(
                f"the teacher takes {what.format(other)}, but the model {what.format(own)}: "
                "their tokens cannot be compared"
            )
    if theirs.pooling is not ours.pooling:
        raise UserError(
            f"the teacher pools by {theirs.pooling.value}, but the model by {ours.pooling.value}: "
            "their tokens cannot be compared"
        )
    if (teacher.data.mean, teacher.data.std) != (config.data.mean, config.data.std):
        raise UserError(
            f"the teacher's images are normalised by mean {teacher.data.mean} and std "
            f"{teacher.data.std}; set data.mean and data.std to the same"
        )

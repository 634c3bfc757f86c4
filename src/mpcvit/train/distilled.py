"""Retraining: an architecture from scratch, on labels and on a teacher."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import MODEL_FILE
from mpcvit.codec import encode
from mpcvit.data import Batch, Dataset, Split, eval_batches
from mpcvit.errors import UserError
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.layers import default_init
from mpcvit.model.vit import ViT, merge_to
from mpcvit.train.devices import DTYPES
from mpcvit.train.evaluate import Evaluation, cross_entropy, divergence, in_top, token_distance
from mpcvit.train.loop import Observer, fit
from mpcvit.train.statistics import Statistics, learn
from mpcvit.train.step import Outcome
from mpcvit.train.supervised import Supervised

_ASKED = 256  # images that a teacher answers for at once
_MOST_PRECOMPUTED_BYTES = 2**30


@dataclass(frozen=True, kw_only=True)
class Distilled(Supervised):
    """The task of learning labels, a teacher's logits and its last tokens.

        loss = chi CE + beta KL(student / T, teacher / T) + gamma |tokens - teacher's tokens|^2

    Where one of them has merged its tokens further, the other's are merged by the same
    means before they are compared.
    Where the teacher is wider or narrower, a learned projection brings the
    student's tokens to its width; it serves training alone and is not saved.
    """

    teacher: Checkpoint
    precomputed: "TeacherOutputs | None" = None

    @property
    def teacher_digest(self) -> str:
        return self.teacher.parameter_digest

    def identity(self) -> dict[str, Any]:
        return {
            **super().identity(),
            "teacher": self.teacher_digest,
            "distill": encode(self.config.distill),
        }

    def init(self, seed: int) -> Any:
        parameters = {"student": super().init(seed)}
        width, wanted = self.config.model.width, self.teacher.model.width
        if width != wanted:
            rng = jax.random.fold_in(jax.random.key(seed), 1)
            parameters["projection"] = {"kernel": default_init(rng, (width, wanted))}
        return parameters

    def frozen(self) -> Any:
        return self.teacher.parameters if self.precomputed is None else self.precomputed

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[jax.Array, Outcome]:
        weights, share = self.config.distill, self.layer_share(epoch)
        learnt = learn(self.model, parameters["student"], batch.images, rng, share)
        logits, tokens = learnt.logits, learnt.named["features"].astype(jnp.float32)
        if self.precomputed is None:
            wanted_logits, wanted = _teach(self.teacher, self.model.dtype, frozen, batch.images)
        else:
            wanted_logits, wanted = (output[batch.indices] for output in frozen)
        fewest = min(tokens.shape[1], wanted.shape[1])
        tokens, wanted = (merge_to(self.config.model, x, fewest) for x in (tokens, wanted))
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
        loss += self.outlier_loss(learnt)
        metrics = {name: term.sum() for name, (_, term) in kept.items()}
        metrics["top1"] = in_top(logits, jnp.argmax(batch.targets, axis=-1), 1).sum()
        return jnp.asarray(loss), Outcome(metrics, _of_student(learnt.statistics))

    def statistics(self, parameters: Any, images: jax.Array) -> Statistics:
        return _of_student(super().statistics(parameters["student"], images))

    def logits(self, parameters: Any, images: jax.Array) -> jax.Array:
        return super().logits(parameters["student"], images)

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        super().save(folder, parameters["student"], evaluation)


def _of_student(statistics: Statistics) -> Statistics:
    return {"student": statistics} if statistics else {}


class TeacherOutputs(NamedTuple):
    """The outputs of a teacher for every training image, by its index in the split."""

    logits: Any  # float32 [image, classes]
    tokens: Any  # float32 [image, token, width]


def precompute_outputs(teacher: Checkpoint, split: Split, dtype: Any) -> TeacherOutputs:
    """Ask the teacher once about every image of a split."""
    ask = jax.jit(lambda images: _teach(teacher, dtype, teacher.parameters, images))
    answers = [
        jax.device_get(ask(batch.images)) for batch in eval_batches(split, teacher.data, _ASKED)
    ]
    logits, tokens = (np.concatenate(parts)[: len(split)] for parts in zip(*answers, strict=True))
    return TeacherOutputs(logits, tokens)


def _precompute_if_fixed(
    config: Config, split: Split, teacher: Checkpoint
) -> TeacherOutputs | None:
    """Return the teacher's outputs, if images stay the same over epochs and memory allows."""
    model = teacher.model
    size_bytes = 4 * len(split) * (model.classes + model.tokens * model.width)
    if config.augment.changes_images or size_bytes > _MOST_PRECOMPUTED_BYTES:
        return None
    return precompute_outputs(teacher, split, DTYPES[config.train.precision])


def _teach(
    teacher: Checkpoint, dtype: Any, parameters: Any, images: jax.Array
) -> tuple[jax.Array, jax.Array]:
    vit = ViT(teacher.model, teacher.architecture, dtype=dtype)
    return _outputs(vit.apply({"params": parameters}, images))


def _outputs(result: Any) -> tuple[jax.Array, jax.Array]:
    """Return logits and last tokens, in float32 whatever the computing type."""
    logits, named = result
    return logits, named["features"].astype(jnp.float32)


def retrain(
    config: Config,
    dataset: Dataset,
    folder: Path,
    *,
    architecture: Architecture,
    teacher: Checkpoint,
    start: Checkpoint | None = None,
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
        start=start,
        teacher=teacher,
        precomputed=_precompute_if_fixed(config, dataset.train, teacher),
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
        ("{} extra tokens", ours.extra_tokens, theirs.extra_tokens),
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

"""One update of a task: its gradients over all devices, and the optimiser."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.choices import Mixture
from mpcvit.artifacts.config import Config, TrainConfig
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.codec import encode
from mpcvit.data import Batch
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.start import start_from
from mpcvit.model.vit import ViT, init_parameters
from mpcvit.train.devices import DTYPES, Devices
from mpcvit.train.evaluate import Evaluation
from mpcvit.train.state import State
from mpcvit.train.statistics import (
    Learnt,
    Statistics,
    follow,
    has_statistics,
    layer_share,
    measure,
)

Metrics = dict[str, jax.Array]


class Outcome(NamedTuple):
    """The things that a loss finds beside itself."""

    metrics: Metrics  # sums over the batch, to log as means per image
    statistics: Statistics  # of batch norms


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task for the training loop: parameters, a loss, and an artifact to save."""

    config: Config
    data_fingerprint: str
    classes: tuple[str, ...] = ()
    start: Checkpoint | None = None

    @property
    def form(self) -> Architecture | Mixture:
        """What the network computes."""
        raise NotImplementedError

    @property
    def model(self) -> ViT:
        train = self.config.train
        dtype = DTYPES[train.precision]
        return ViT(self.config.model, self.form, dtype=dtype, remat=train.remat)

    def identity(self) -> dict[str, Any]:
        """Return what identifies a run beyond its configuration; a resumed run must agree."""
        start = {} if self.start is None else {"start": self.start.parameter_digest}
        return {"data_fingerprint": self.data_fingerprint, **start}

    def init(self, seed: int) -> Any:
        """Return fresh parameters, or what a start gives of them."""
        fresh = init_parameters(self.config.model, self.form, seed)
        if self.start is None:
            return fresh
        return start_from(self.start, fresh, self.config.model, self.classes).parameters

    def frozen(self) -> Any:
        """Return arrays that the loss reads and that are not learnt, such as a teacher's."""
        return {}

    def loss(
        self, parameters: Any, frozen: Any, batch: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[jax.Array, Outcome]:
        """Return the scalar to minimise; `epoch` counts those done, the present one in part."""
        raise NotImplementedError

    def layer_share(self, epoch: jax.Array) -> jax.Array | None:
        """Return the share of layer norms in batch norms while a network is converted.

        A start that has batch norms is converted already.
        """
        if self.start is not None and has_statistics(self.start.parameters):
            return None
        return layer_share(self.config.train, epoch)

    def outlier_loss(self, learnt: Learnt) -> jax.Array | float:
        weight = self.config.train.outlier_weight
        return weight * learnt.outliers if weight else 0.0  # no number times 0 is no number

    def statistics(self, parameters: Any, images: jax.Array) -> Statistics:
        """Return the statistics of batch norms in a batch, in the tree of the parameters."""
        return measure(self.model, parameters, images)

    def project(self, parameters: Any) -> Any:
        """Bring updated parameters back into their allowed range."""
        return parameters

    def logits(self, parameters: Any, images: jax.Array) -> jax.Array:
        return self.model.apply({"params": parameters}, images)[0]

    def epoch_values(self, parameters: Any) -> dict[str, Any]:
        """Return values to log for an epoch beside its losses: lists with an entry per layer."""
        return {}

    def save(self, folder: Path, parameters: Any, evaluation: Evaluation) -> None:
        """Write the task's artifact."""
        raise NotImplementedError

    def provenance(self, origin: str, evaluation: Evaluation, teacher: str = "") -> Provenance:
        return Provenance(
            origin=origin,
            environment=Environment.current(),
            config=encode(self.config),
            data_fingerprint=self.data_fingerprint,
            started_from="" if self.start is None else self.start.parameter_digest,
            teacher=teacher,
            metrics=evaluation.as_metrics(),
        )


def initial_state(task: Task, config: Config, steps_per_epoch: int) -> State:
    optimizer = make_optimizer(config.train, steps_per_epoch)
    parameters = task.init(config.seed)
    batch = jax.eval_shape(lambda: _empty_batch(config))
    rng, epoch = jax.random.key(0), jnp.zeros(())
    _, outcome = jax.eval_shape(task.loss, parameters, task.frozen(), batch, rng, epoch)
    sums = {name: jnp.zeros((), jnp.float32) for name in ("images", "loss", *outcome.metrics)}
    return State.initial(parameters, optimizer.init(parameters), sums)


def make_step(
    task: Task, config: Config, steps_per_epoch: int, devices: Devices
) -> Callable[[State, Any, Batch], tuple[State, jax.Array]]:
    """Compile one update. The old state's memory is reused for the new one."""
    optimizer = make_optimizer(config.train, steps_per_epoch)
    gradients_of = _make_gradients(task, config, steps_per_epoch, devices)

    def step(state: State, frozen: Any, batch: Batch) -> tuple[State, jax.Array]:
        loss, outcome, gradients = gradients_of(state.parameters, frozen, state.step, batch)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = task.project(optax.apply_updates(state.parameters, updates))
        parameters = follow(parameters, outcome.statistics)
        images = batch.images.shape[0]
        added = {"images": jnp.float32(images), "loss": loss * images, **outcome.metrics}
        sums = {name: state.sums[name] + added[name] for name in state.sums}
        return State(parameters, optimizer_state, state.step + 1, sums), loss

    return devices.jit(step, donate_argnums=0)


def _make_gradients(
    task: Task, config: Config, steps_per_epoch: int, devices: Devices
) -> Callable[..., Any]:
    """Return a function for loss, outcome and gradients; devices take a batch in pieces."""
    seed = config.seed
    per_device = config.train.batch_size // devices.count
    pieces = per_device // devices.piece_size(per_device, config.train.piece_size)
    differentiate = jax.value_and_grad(task.loss, has_aux=True)

    def of_piece(
        parameters: Any, frozen: Any, piece: Batch, rng: jax.Array, epoch: jax.Array
    ) -> tuple[Any, Outcome, Any]:
        (loss, outcome), gradients = differentiate(parameters, frozen, piece, rng, epoch)
        return loss, outcome, gradients

    def on_device(
        parameters: Any, frozen: Any, step: jax.Array, batch: Batch
    ) -> tuple[Any, Outcome, Any]:
        epoch = step / steps_per_epoch
        rng = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), step), devices.index())
        cut = jax.tree.map(lambda x: x.reshape(pieces, -1, *x.shape[1:]), batch)

        def add(total: Any, numbered: tuple[jax.Array, Batch]) -> tuple[Any, None]:
            index, piece = numbered
            found = of_piece(parameters, frozen, piece, jax.random.fold_in(rng, index), epoch)
            return jax.tree.map(jnp.add, total, found), None

        first = jax.tree.map(lambda x: x[0], cut)
        shapes = jax.eval_shape(of_piece, parameters, frozen, first, rng, epoch)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        summed, _ = jax.lax.scan(add, zeros, (jnp.arange(pieces), cut))
        loss, (metrics, statistics), gradients = devices.sum(summed)
        # metrics are sums over images, all else are means
        parts = pieces * devices.count
        loss, statistics, gradients = jax.tree.map(
            lambda x: x / parts, (loss, statistics, gradients)
        )
        return loss, Outcome(metrics, statistics), gradients

    return devices.on_each(on_device)


def _empty_batch(config: Config) -> Batch:
    size, batch = config.model.image_size, config.train.batch_size
    return Batch(
        images=jnp.zeros((batch, size, size, config.model.channels)),
        targets=jnp.zeros((batch, config.model.classes)),
        labels=jnp.zeros((batch,), jnp.int32),
        indices=jnp.zeros((batch,), jnp.int32),
    )


def learning_rate(config: TrainConfig, steps_per_epoch: int) -> optax.Schedule:
    """Rise linearly over the warm-up, then fall along a half cosine to the floor."""
    total = config.epochs * steps_per_epoch
    warmup = min(round(config.warmup_epochs * steps_per_epoch), total - 1)
    if warmup == 0:
        floor = config.min_learning_rate / config.learning_rate
        return optax.cosine_decay_schedule(config.learning_rate, total, alpha=floor)
    return optax.warmup_cosine_decay_schedule(
        init_value=config.warmup_learning_rate,
        peak_value=config.learning_rate,
        warmup_steps=warmup,
        decay_steps=total,
        end_value=config.min_learning_rate,
    )


def make_optimizer(config: TrainConfig, steps_per_epoch: int) -> optax.GradientTransformation:
    """Return the optimiser. Only kernels of linears decay, and no bias, norm, position or token."""
    adamw = optax.adamw(
        learning_rate(config, steps_per_epoch),
        weight_decay=config.weight_decay,
        mask=_kernels,
    )
    if config.clip_norm == 0:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), adamw)


def _kernels(parameters: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) == "kernel", parameters
    )

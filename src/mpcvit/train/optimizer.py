"""AdamW with warm-up, cosine decay to a floor, and clipping."""

from typing import Any

import jax
import optax

from mpcvit.artifacts.config import TrainConfig


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
    """Only the kernels of linears decay: not biases, norms, positions or tokens."""
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

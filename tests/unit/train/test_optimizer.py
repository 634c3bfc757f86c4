"""Schedule and decay of the optimiser."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.config import TrainConfig
from mpcvit.train.step import learning_rate, make_optimizer

STEPS = 11  # per epoch


def config(**changes):
    fields = {
        "epochs": 10,
        "learning_rate": 0.5,
        "min_learning_rate": 0.1,
        "warmup_epochs": 3,
        "warmup_learning_rate": 0.01,
        "weight_decay": 0.3,
    }
    return TrainConfig(**{**fields, **changes})


def expected_rate(step, warmup, total=110):
    if step < warmup:
        return 0.01 + (0.5 - 0.01) * step / warmup
    share = min(1, (step - warmup) / (total - warmup))
    return 0.1 + (0.5 - 0.1) * (1 + math.cos(math.pi * share)) / 2


@pytest.mark.parametrize("warmup_epochs", [0, 3])
def test_warm_up_then_cosine_to_the_floor(warmup_epochs):
    schedule = learning_rate(config(warmup_epochs=warmup_epochs), STEPS)
    for step in (0, 1, 16, 32, 33, 34, 71, 109, 110, 500):
        expected = expected_rate(step, STEPS * warmup_epochs)
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5)


def test_only_kernels_decay():
    parameters = {
        "linear": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)},
        "position": jnp.ones((5, 3)),
    }
    optimizer = make_optimizer(config(), STEPS)
    zero = {
        "linear": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)},
        "position": jnp.zeros((5, 3)),
    }
    updates, _ = optimizer.update(zero, optimizer.init(parameters), parameters)
    # the first step's rate is the warm-up's start, 0.01
    assert np.allclose(updates["linear"]["kernel"], -0.01 * 0.3)
    assert not np.any(updates["linear"]["bias"])
    assert not np.any(updates["position"])


def test_clipping_bounds_the_gradient_before_adam():
    parameters = {"bias": jnp.zeros(3)}
    gradient = {"bias": jnp.array([3.0, 0.0, 4.0])}
    optimizer = make_optimizer(config(clip_norm=0.5), STEPS)
    _, state = optimizer.update(gradient, optimizer.init(parameters), parameters)
    moments = state[1][0].mu["bias"]
    # Adam's first moment is a tenth of the gradient, which has been scaled to length 0.5
    assert np.allclose(moments, 0.1 * np.array([0.3, 0.0, 0.4]))

"""Small models for tests: prime shapes, and no parameter at its initial value."""

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.config import ModelConfig
from mpcvit.model.vit import init_parameters

SMALL = {
    "image_size": 6,
    "patch_size": 2,
    "channels": 3,
    "classes": 7,
    "depth": 2,
    "heads": 3,
    "width": 15,
    "mlp_ratio": 2.2,
    "the_x_hidden": 11,
}


def small_config(**changes):
    return ModelConfig(**{**SMALL, **changes})


def perturbed_parameters(config, architecture, seed=0):
    """Random everywhere: zero biases and unit gains would hide mistakes."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(lambda: init_parameters(config, architecture, seed))

    def perturb(path, leaf):
        centre = 1 if path[-1].key in ("scale", "gamma") else 0
        return (centre + 0.3 * rng.standard_normal(leaf.shape)).astype(np.float32)

    return jax.tree_util.tree_map_with_path(perturb, shapes)


def random_images(config, batch, seed=1):
    rng = np.random.default_rng(seed)
    size = config.image_size
    return jnp.asarray(rng.standard_normal((batch, size, size, config.channels)), jnp.float32)

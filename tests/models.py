"""Small models for tests: prime shapes, and no parameter at its initial value."""

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import DataConfig, ModelConfig, Pooling
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import parameter_shapes

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

# every way to begin and to end a network
ENDS = {
    "class": {},
    "mean": {"pooling": Pooling.MEAN},
    "mean beside extra tokens": {"pooling": Pooling.MEAN, "extra_tokens": 2},
    "norm of the mean": {"pooling": Pooling.MEAN, "extra_tokens": 1, "pooled_norm": True},
    "class beside extra tokens": {"extra_tokens": 2},
    "class and mean": {"pooling": Pooling.CLASS_MEAN},
    "class and mean beside extra tokens": {"pooling": Pooling.CLASS_MEAN, "extra_tokens": 2},
    "class and extra token": {"pooling": Pooling.CLASS_EXTRA, "extra_tokens": 1},
    "norm of the embedding": {"embed_norm": True},
}


def small_config(**changes):
    return ModelConfig(**{**SMALL, **changes})


def perturbed_parameters(config, architecture, seed=0):
    """Random everywhere: zero biases and unit gains would hide mistakes."""
    rng = np.random.default_rng(seed)

    def perturb(path, leaf):
        centre = 1 if path[-1].key in ("scale", "gamma", "variance") else 0
        leaf = (centre + 0.3 * rng.standard_normal(leaf.shape)).astype(np.float32)
        return np.abs(leaf) + 0.1 if path[-1].key == "variance" else leaf

    return jax.tree_util.tree_map_with_path(perturb, parameter_shapes(config, architecture))


def tame(parameters):
    """Make kernels of blocks small, where nothing else bounds what every block squares."""
    for name in parameters:
        if name.startswith("blocks_"):
            own = parameters[name]
            for linear in (*own["attention"].values(), own["mlp"]["up"], own["mlp"]["down"]):
                linear["kernel"] *= 0.4


def random_images(config, batch, seed=1):
    rng = np.random.default_rng(seed)
    size = config.image_size
    return jnp.asarray(rng.standard_normal((batch, size, size, config.channels)), jnp.float32)


def small_checkpoint(config, architecture, seed=0):
    return Checkpoint(
        model=config,
        architecture=architecture,
        data=DataConfig(mean=(0.4, 0.5, 0.6), std=(0.3, 0.2, 0.25)),
        classes=tuple(f"class {index}" for index in range(config.classes)),
        parameters=perturbed_parameters(config, architecture, seed),
        provenance=Provenance(origin="test", environment=Environment.current()),
    )


def random_pixels(config, count, seed=2):
    rng = np.random.default_rng(seed)
    size = config.image_size
    return rng.integers(0, 256, (count, size, size, config.channels), np.uint8)


def rows_of_every_kind(tokens):
    """Return the kinds of every row, for each of three heads that together have all kinds."""
    kinds = list(table.KINDS.values())
    rows = [
        tuple(kinds[(5 * head + token) % len(kinds)] for token in range(tokens))
        for head in range(3)
    ]
    assert {kind for row in rows for kind in row} == set(kinds)
    return rows


def tiny():
    """Return a network of one layer without an activation, and three images."""
    config = small_config(depth=1)
    architecture = Architecture.uniform(table.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)
    return small_checkpoint(config, architecture), random_pixels(config, 3)

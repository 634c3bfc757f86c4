"""Products of heads and images: as many together as pays, and the same numbers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.kinds.table import SCALING
from mpcvit.lowering import attention
from mpcvit.lowering.attention import products, together
from mpcvit.lowering.fold import fold
from mpcvit.lowering.network import forward
from mpcvit.model.vit import init_parameters


@pytest.mark.parametrize(
    ("pairs", "rows", "inner", "columns", "count"),
    [
        (1, 65, 256, 256, 1),
        (4, 65, 64, 64, 4),  # the heads of the paper's CIFAR network
        (12, 257, 16, 257, 1),  # scores of its Tiny-ImageNet network
        (16, 256, 65, 256, 1),  # so large that an exchange is worth less
        (64, 17, 64, 64, 8),  # few tokens of 16 images
        (5, 1, 7, 3, 5),
    ],
)
def test_as_many_as_pays(pairs, rows, inner, columns, count):
    assert together(pairs, rows, inner, columns) == count


@pytest.mark.parametrize("size", [2, 300])
def test_the_same_products(size):
    """Of any number of rows, in groups and alone."""
    rng = np.random.default_rng(0)
    pairs = [
        (rng.standard_normal((rows, size)), rng.standard_normal((size, 41)))
        for rows in (3, 1, 8, 2, 5, 300, 7)
    ]
    count = together(len(pairs), 326 / 7, size, 41)
    assert count == (7 if size == 2 else 4)
    for (a, b), found in zip(pairs, products(pairs), strict=True):
        np.testing.assert_allclose(found, a @ b, atol=1e-4)


WIDE = (
    *("model.norm=batch", "model.activation=quadratic", "model.attention=scaling"),
    "model.layer_tokens=[65,65,65,33,33,17,17]",
)


@pytest.mark.parametrize(
    ("config", "overrides", "one_by_one", "together"),
    [("cifar10-poly", (), 522, 40), ("cifar10", WIDE, 924, 175)],
)
def test_products_of_sixteen_images(config, overrides, one_by_one, together, monkeypatch):
    """Each takes an exchange. Of the wide network, few are small enough to share many."""
    model = load_config(Path(config), list(overrides)).model
    architecture = Architecture.uniform(SCALING, depth=model.depth, heads=model.heads)
    shapes = jax.eval_shape(lambda: init_parameters(model, architecture, seed=0))
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
    weights = fold(model, architecture, ones)
    images = jax.ShapeDtypeStruct((16, 32, 32, 3), jnp.float32)

    def count():
        functions = {"block 1 norm2": lambda x: x}  # its exchanges are not counted
        traced = jax.make_jaxpr(lambda x: forward(model, architecture, functions, weights, x))
        names = [equation.primitive.name for equation in traced(images).jaxpr.eqns]
        return names.count("dot_general")

    assert count() == together
    monkeypatch.setattr(attention, "together", lambda *_: 1)
    assert count() == one_by_one

"""Products of a batch: as many images together as pays, and the same numbers."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.kinds.table import SCALING
from mpcvit.lowering import attention
from mpcvit.lowering.attention import _images_together, _product
from mpcvit.lowering.fold import fold
from mpcvit.lowering.network import forward
from mpcvit.model.vit import init_parameters


@pytest.mark.parametrize(
    ("batch", "rows", "inner", "columns", "count"),
    [
        (1, 65, 256, 256, 1),
        (16, 256, 65, 256, 1),  # so large that an exchange is worth less
        (16, 64, 17, 64, 4),  # the four heads of a narrow layer
        (16, 4, 256, 64, 4),  # the class token alone
        (5, 1, 7, 3, 5),
    ],
)
def test_as_many_as_pays(batch, rows, inner, columns, count):
    assert _images_together(batch, rows, inner, columns) == count


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [2, 60])
def test_the_same_products(size, transposed):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 7, 5, size)).astype(np.float32)
    b = np.ascontiguousarray(b if transposed else b.transpose(0, 2, 1))
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    exact = (a64.transpose(0, 2, 1) if transposed else a64) @ b64
    np.testing.assert_allclose(_product(a, b, transposed=transposed), exact, atol=1e-4)


WIDE = (
    *("model.norm=batch", "model.activation=quadratic", "model.attention=scaling"),
    "model.layer_tokens=[65,65,65,33,33,17,17]",
)


@pytest.mark.parametrize(
    ("config", "overrides", "one_by_one", "together"),
    [("cifar10-poly", (), 144, 62), ("cifar10", WIDE, 252, 208)],
)
def test_products_of_sixteen_images(config, overrides, one_by_one, together, monkeypatch):
    """Each takes an exchange. Of the wide network, most products are too large to share one."""
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
    monkeypatch.setattr(attention, "_images_together", lambda *_: 1)
    assert count() == one_by_one

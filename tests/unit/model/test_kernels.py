"""Written-out gradients against JAX's own of the plain formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.config import Activation
from mpcvit.model import kernels
from mpcvit.model.layers import activate
from tests.tolerances import F32, assert_close


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape) + 0.5, jnp.float32) for shape in shapes]


def plain_norm(x, scale, bias):
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + 1e-5) * scale + bias


CASES = {
    "matmul": (kernels.matmul, lambda x, w: x @ w, arrays((13, 7), (7, 5))),
    "add_bias": (kernels.add_bias, lambda x, b: x + b, arrays((13, 7), (7,))),
    "normalise": (
        lambda x, s, b: kernels.normalise(x, s, b, 1e-5),
        plain_norm,
        arrays((13, 7), (7,), (7,)),
    ),
    "batch_normalise": (
        lambda x, s, b: kernels.batch_normalise(x, s, b, 1e-5)[0],
        lambda x, s, b: (x - x.mean(axis=0)) / jnp.sqrt(x.var(axis=0) + 1e-5) * s + b,
        arrays((13, 7), (7,), (7,)),
    ),
    "quadratic": (
        kernels.quadratic,
        lambda x, a, b, c: a * x**2 + b * x + c,
        arrays((13, 7), (7,), (7,), (7,)),
    ),
    "gelu": (kernels.gelu, lambda x: jax.nn.gelu(x, approximate=False), arrays((13, 7))),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case):
    written, plain, inputs = CASES[case]
    assert_close(written(*inputs), plain(*inputs), F32)
    (weight,) = arrays(jax.eval_shape(plain, *inputs).shape)
    places = tuple(range(len(inputs)))
    ours, theirs = (
        jax.grad(lambda *x, f=function: (weight * f(*x)).sum(), argnums=places)(*inputs)
        for function in (written, plain)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other, F32)


def test_distances_from_gelu_are_as_documented():
    x = jnp.linspace(-10, 10, 20_001)
    exact = kernels.gelu(x)
    for activation, bound in ((Activation.GELU_TANH, 5e-4), (Activation.GELU_SIGMOID, 0.021)):
        distance = float(jnp.abs(activate(activation, x) - exact).max())
        assert bound / 2 < distance <= bound


def test_gelu_far_out():
    x = jnp.array([-40.0, -6.0, -1e-4, 0.0, 1e-4, 6.0, 40.0])
    assert_close(kernels.gelu(x), jax.nn.gelu(x, approximate=False), F32)
    gradient = jax.grad(lambda x: kernels.gelu(x).sum())(x)
    assert np.isfinite(gradient).all()
    assert_close(gradient[:2], [0.0, 0.0], F32)

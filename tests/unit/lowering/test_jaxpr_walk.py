"""What NumPy computes in place of JAX: operation by operation the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.lowering.jaxpr_walk import run_in_numpy

X = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
Y = np.random.default_rng(1).standard_normal((2, 5, 7)).astype(np.float32)


def in_numpy(function, *arguments, **choices):
    traced = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return run_in_numpy(traced, *arguments, **choices)


CASES = {  # by an operation that each of them uses
    "dot_general": [
        lambda: (lambda x, y: x @ y, X, Y),
        lambda: (lambda x, y: jnp.einsum("bij,bjk->ikb", x, y), X, Y),
        lambda: (lambda x, y: jnp.tensordot(x, y, axes=([2, 0], [1, 0])), X, Y),
    ],
    "select_n": [lambda: (lambda x: jnp.where(x > 0, x, 2 * x), X)],
    "slice": [lambda: (lambda x: x[:, 1:, ::2] + x[:, :2, 1:4], X[:, :, :5])],
    "pad": [lambda: (lambda x: jnp.pad(x, ((0, 1), (2, 0), (1, 1)), constant_values=3.0), X)],
    "concatenate": [lambda: (lambda x, y: jnp.concatenate([x, x[:, :1]], axis=1), X, Y)],
    "broadcast_in_dim": [lambda: (lambda x: x - x.mean(axis=1, keepdims=True), X)],
    "transpose": [lambda: (lambda x: x.transpose(2, 0, 1).reshape(5, 6), X)],
    "rev": [lambda: (lambda x: jnp.flip(x, axis=(0, 2)), X)],
    "reduce_max": [lambda: (lambda x: x.max(axis=(0, 2)) - x.min(axis=1).sum(), X)],
    "integer_pow": [lambda: (lambda x: x**3 + jnp.square(x), X)],
    "exp": [lambda: (lambda x: jnp.exp(x) + jnp.tanh(x) + jax.lax.rsqrt(jnp.abs(x) + 1), X)],
    "erfc": [lambda: (lambda x: jax.nn.gelu(x, approximate=False), X)],  # JAX's own
}


@pytest.mark.parametrize("case", [(name, case) for name, all in CASES.items() for case in all])
def test_the_same_as_jax(case):
    name, make = case
    function, *arrays = make()
    assert name in str(jax.make_jaxpr(function)(*arrays))
    expected, computed = function(*map(jnp.asarray, arrays)), in_numpy(function, *arrays)
    assert isinstance(computed, np.ndarray)
    assert computed.dtype == expected.dtype
    # sums of at most ten products of float32, in another order
    np.testing.assert_allclose(computed, expected, rtol=1e-5, atol=1e-6)


def test_every_operation_is_seen_and_may_be_changed():
    seen = []

    def double_products(operation, value):
        seen.append(operation)
        return 2 * value if operation == "mul" else value

    result = in_numpy(lambda x: x * x + 1.0, X, visit=double_products)
    assert seen == ["input", "mul", "literal", "add"]
    np.testing.assert_allclose(result, 2 * X * X + 1, rtol=1e-6)


def test_what_overflows_is_seen_in_the_result_without_a_warning():
    assert np.isinf(in_numpy(lambda x: jnp.exp(x * 1000), np.float32([1.0]))).all()

"""Traced stages: the same values with constants as inputs, and squares where SPU has them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.errors import UserError
from mpcvit.secure.spu import rewrite as rewriting
from mpcvit.secure.spu.rewrite import rewrite

X = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
TABLE = np.arange(5, dtype=np.float32)


def stage(x):
    y = x * 0.5 - 0.25
    squared = y * y
    return jax.nn.relu(squared * TABLE + jnp.square(x)), jnp.pad(x, 1)[:1]


def traced(function=stage):
    return jax.make_jaxpr(function)(X)


def count(function, primitive, *arguments):
    program = jax.make_jaxpr(function)(*arguments).jaxpr
    return sum(own.primitive.name == primitive for own in rewriting._all_equations(program))


def test_constants_are_inputs():
    function, constants = rewrite(traced(), constants_apart=True, squares=False)
    assert [constant.shape for constant in constants] == [(5,), (), ()]
    found = function(X, *(constant.array for constant in constants))
    for one, other in zip(found, stage(X), strict=True):
        np.testing.assert_array_equal(one, other)
    changed = [constant.array + 1 for constant in constants]
    assert not np.array_equal(function(X, *changed)[0], stage(X)[0])
    assert len({constant.name for constant in constants}) == 3
    assert rewriting.Constant.of([0.0]).name != rewriting.Constant.of(0.0).name


def test_squares(monkeypatch):
    function, constants = rewrite(traced(), constants_apart=False, squares=True)
    assert not constants
    assert count(function, "exp", X) == 2
    monkeypatch.setattr(jnp, "exp", lambda y: (1 + y / 2) ** 2)  # as SPU computes it then
    for one, other in zip(function(X), stage(X), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x) * jnp.square(x + 1),  # a compiler makes exp(a + b) of exp(a) exp(b)
        lambda x: (x * x)[:2] * (x * x)[1:],
        lambda x: 1 / (x * x),
        lambda x: jnp.sqrt((x * x).reshape(-1)),
    ],
)
def test_squares_that_a_compiler_would_see_as_exp_stay_products(function):
    rewritten, _ = rewrite(traced(function), constants_apart=False, squares=True)
    assert count(rewritten, "exp", X) == 0


def test_a_square_of_a_square_is_one():
    rewritten, _ = rewrite(traced(lambda x: (x * x) * (x * x)), constants_apart=False, squares=True)
    assert count(rewritten, "exp", X) == 0  # two squares, of which nobody knows that they are one
    rewritten, _ = rewrite(
        traced(lambda x: jnp.square(x * x) + 1), constants_apart=False, squares=True
    )
    assert count(rewritten, "exp", X) == 2


@pytest.mark.parametrize("function", [jnp.exp, jax.nn.sigmoid, jax.nn.gelu, jax.nn.softmax])
def test_a_network_with_an_exp_is_refused(function):
    with pytest.raises(UserError, match=r"cannot have squares = true"):
        rewrite(traced(lambda x: function(x) + x * x), constants_apart=False, squares=True)

"""Traced stages: the same values with constants as inputs, and squares where SPU has them."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.profile import load_profile
from mpcvit.errors import UserError
from mpcvit.secure.spu import compile as compiling
from mpcvit.secure.spu import rewrite as rewriting
from mpcvit.secure.spu.rewrite import rewrite
from mpcvit.secure.spu.stages import Stage, Staged
from tests.models import small_config

SEMI2K = load_profile("semi2k")
WITH_SQUARES = choose_engine(SEMI2K).apply(SEMI2K)

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


def compiled_code(function, monkeypatch):
    """Return the bytecode of a stage in a network whose profile has squares."""
    config = small_config()
    stage = Stage(name="stage", parts=(), function=lambda parameters, x: function(x))
    network = Staged(stages=(stage,), parameters={}, notes=())
    monkeypatch.setattr(compiling, "stage_network", lambda card, profile: network)
    program = compiling._compile_stages(
        SimpleNamespace(model=config), WITH_SQUARES, 1, lambda done, total: None
    )
    return program.stages[0].code


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x) * jnp.square(x + 1),  # a compiler makes exp(a + b) of exp(a) exp(b)
        lambda x: 1 / (x * x),
        lambda x: (x * x) ** 3,
        lambda x: jax.jit(lambda a, b: a * b)(x * x, x * x + 0.0),
        lambda x: (x * x + 0.0) * jnp.square(x + 1),
        lambda x: jnp.square(x[..., :1]).sum(axis=-1) * jnp.square(x[..., 0] + 1),
        lambda x: (-(x * x)) * (-jnp.square(x + 1)),
    ],
)
def test_squares_that_a_compiler_would_see_as_exp_are_products(function, monkeypatch):
    rewritten, _ = rewrite(traced(function), constants_apart=False, squares=True)
    assert count(rewritten, "exp", X) > 0
    assert "pphlo.exponential" not in compiled_code(function, monkeypatch)


@pytest.mark.parametrize(
    ("function", "squares"),
    [
        (lambda x: jnp.square(x * x) + 1, 2),
        (lambda x: (3 * x * x) + jnp.square(x * 0.5 + 1), 1),
        (lambda x: (3.0 * jnp.square(x)) * (2.0 * jnp.square(x + 1)), 2),
        (lambda x: (x * x)[:, :2] * (x * x)[:, 1:3], 1),
        (lambda x: jax.lax.rsqrt(jnp.square(x).sum(axis=-1) + 1), 1),
    ],
)
def test_squares_that_stay(function, squares, monkeypatch):
    assert compiled_code(function, monkeypatch).count("pphlo.exponential") == squares


def test_a_square_of_what_is_public_is_no_exp():
    """SPU computes the real exp of what is no secret, and a compiler of what is constant."""
    rewritten, _ = rewrite(
        traced(lambda x: x + jnp.square(jax.lax.broadcast(jnp.float32(1.7), (5,)))),
        constants_apart=False,
        squares=True,
    )
    assert count(rewritten, "exp", X) == 0


@pytest.mark.parametrize("function", [jnp.sinh, jax.scipy.special.erfc])
def test_a_function_that_is_made_of_exp_is_refused(function, monkeypatch):
    with pytest.raises(UserError, match="cannot have squares = true"):
        compiled_code(lambda x: function(x) + x * x, monkeypatch)


@pytest.mark.parametrize("function", [jnp.exp, jax.nn.sigmoid, jax.nn.gelu, jax.nn.softmax])
def test_a_network_with_an_exp_is_refused(function):
    with pytest.raises(UserError, match=r"cannot have squares = true"):
        rewrite(traced(lambda x: function(x) + x * x), constants_apart=False, squares=True)

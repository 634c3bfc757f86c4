"""Linear, norms and activations with gradients written out.

The functions are the plain formulas, and so are the gradients, up to rounding.
Written out, a training step on a CPU is much shorter (docs/performance.md):
weights' gradients need no transposed copies, sums over tokens are products,
and GeLU keeps its input alone. Accelerators lose nothing.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Rows = Float[Array, "row inputs"]
_Pair = tuple[Array, Array]


def _contract(a: Array, b: Array, axis_a: int, axis_b: int) -> Array:
    return lax.dot_general(a, b, (((axis_a,), (axis_b,)), ((), ())))


def _sum_rows(x: Float[Array, "row column"]) -> Float[Array, "column"]:
    """Sum over rows as a product: XLA's own reduction over the slow axis is serial.

    One row of ones would be simplified to that reduction; two are not.
    """
    return _contract(jnp.ones((2, x.shape[0]), x.dtype), x, 1, 0)[0]


@jax.custom_vjp
def matmul(x: Rows, kernel: Float[Array, "inputs outputs"]) -> Float[Array, "row outputs"]:
    """x W."""
    return x @ kernel


def _matmul_forward(x: Array, kernel: Array) -> tuple[Array, _Pair]:
    return x @ kernel, (x, kernel)


def _matmul_backward(saved: _Pair, gradient: Array) -> _Pair:
    x, kernel = saved
    return _contract(gradient, kernel, 1, 1), _contract(x, gradient, 0, 0)


matmul.defvjp(_matmul_forward, _matmul_backward)


@jax.custom_vjp
def add_bias(
    x: Float[Array, "row outputs"], bias: Float[Array, "outputs"]
) -> Float[Array, "row outputs"]:
    """x + b."""
    return x + bias


add_bias.defvjp(
    lambda x, bias: (x + bias, None), lambda _, gradient: (gradient, _sum_rows(gradient))
)


def _mean(x: Array) -> Array:
    return x.mean(axis=-1, keepdims=True)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def normalise(
    x: Rows, scale: Float[Array, "inputs"], bias: Float[Array, "inputs"], eps: float
) -> Rows:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * scale + bias, row by row."""
    return _normalise_forward(x, scale, bias, eps)[0]


def _normalise_forward(
    x: Array, scale: Array, bias: Array, eps: float
) -> tuple[Array, tuple[Array, Array, Array]]:
    # Two passes: E[x^2] - E[x]^2 would cancel where the mean is large.
    centred = x - _mean(x)
    inverse = lax.rsqrt(_mean(jnp.square(centred)) + eps)
    unit = centred * inverse
    return unit * scale + bias, (unit, inverse, scale)


def _normalise_backward(
    eps: float, saved: tuple[Array, Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    unit, inverse, scale = saved
    scaled = gradient * scale
    x_gradient = inverse * (scaled - _mean(scaled) - unit * _mean(scaled * unit))
    return x_gradient, _sum_rows(gradient * unit), _sum_rows(gradient)


normalise.defvjp(_normalise_forward, _normalise_backward)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def batch_normalise(
    x: Rows, scale: Float[Array, "inputs"], bias: Float[Array, "inputs"], eps: float
) -> tuple[Rows, Float[Array, "inputs"], Float[Array, "inputs"]]:
    """(x - mean) / sqrt(variance + eps) * scale + bias, column by column; mean and variance.

    The two statistics are for averages: no gradient flows through them.
    """
    return _batch_normalise_forward(x, scale, bias, eps)[0]


def _batch_normalise_forward(
    x: Array, scale: Array, bias: Array, eps: float
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array, Array]]:
    mean = _sum_rows(x) / x.shape[0]
    centred = x - mean
    variance = _sum_rows(jnp.square(centred)) / x.shape[0]
    inverse = lax.rsqrt(variance + eps)
    unit = centred * inverse
    return (unit * scale + bias, mean, variance), (unit, inverse, scale)


def _batch_normalise_backward(
    eps: float, saved: tuple[Array, Array, Array], gradients: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    unit, inverse, scale = saved
    gradient, rows = gradients[0], unit.shape[0]
    scale_gradient, bias_gradient = _sum_rows(gradient * unit), _sum_rows(gradient)
    centred = gradient - bias_gradient / rows - unit * (scale_gradient / rows)
    return scale * inverse * centred, scale_gradient, bias_gradient


batch_normalise.defvjp(_batch_normalise_forward, _batch_normalise_backward)


@jax.custom_vjp
def quadratic(
    x: Rows,
    square: Float[Array, "inputs"],
    slope: Float[Array, "inputs"],
    constant: Float[Array, "inputs"],
) -> Rows:
    """Compute a x^2 + b x + c, with coefficients for each column."""
    return (square * x + slope) * x + constant


def _quadratic_backward(
    saved: tuple[Array, Array, Array], gradient: Array
) -> tuple[Array, Array, Array, Array]:
    x, square, slope = saved
    weighted = gradient * x
    return (
        gradient * (2 * square * x + slope),
        _sum_rows(weighted * x),
        _sum_rows(weighted),
        _sum_rows(gradient),
    )


quadratic.defvjp(
    lambda x, square, slope, constant: (
        (square * x + slope) * x + constant,
        (x, square, slope),
    ),
    _quadratic_backward,
)


def _normal_cdf(x: Array) -> Array:
    return 0.5 + 0.5 * lax.erf(x * math.sqrt(0.5))


@jax.custom_vjp
def gelu(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """x (1 + erf(x / sqrt 2)) / 2."""
    return x * _normal_cdf(x)


def _gelu_backward(x: Array, gradient: Array) -> tuple[Array]:
    density = jnp.exp(-0.5 * jnp.square(x)) / math.sqrt(2 * math.pi)
    return (gradient * (_normal_cdf(x) + x * density),)


gelu.defvjp(lambda x: (x * _normal_cdf(x), x), _gelu_backward)

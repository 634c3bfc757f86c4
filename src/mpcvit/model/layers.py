"""Linear, activations, norms, merged tokens, dropout and stochastic depth."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpcvit.artifacts.forms import Activation
from mpcvit.model import kernels

default_init = nn.initializers.normal(stddev=0.02)
FAR = 5.0  # from zero; few of a batch norm's values lie beyond if they are a bell curve


class Linear(nn.Module):
    """x W + b, with weights that a parent may read, to fuse two of them."""

    inputs: int
    outputs: int
    use_bias: bool = True
    dtype: Any = jnp.float32
    kernel_init: nn.initializers.Initializer = default_init

    def setup(self) -> None:
        self.kernel = self.param("kernel", self.kernel_init, (self.inputs, self.outputs))
        if self.use_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.outputs,))

    def __call__(self, x: Float[Array, "*lead inputs"]) -> Float[Array, "*lead outputs"]:
        rows = x.astype(self.dtype).reshape(-1, self.inputs)
        y = kernels.matmul(rows, self.kernel.astype(self.dtype))
        if self.use_bias:
            y = kernels.add_bias(y, self.bias.astype(self.dtype))
        return y.reshape(*x.shape[:-1], self.outputs)


def activate(activation: Activation, x: Array) -> Array:
    """Apply the MLP's non-linearity.

        gelu          x (1 + erf(x / sqrt 2)) / 2
        gelu_tanh     x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
        gelu_sigmoid  x sigmoid(1.702 x)
        relu          max(x, 0)
        quad          x^2 / 8 + x / 4 + 1 / 2

    Distance from gelu: gelu_tanh at most 5e-4 and gelu_sigmoid at most 0.021
    anywhere; quad is near it only around zero, and nets must be trained with it.
    Secure cost: gelu and its two forms are expensive (erf, tanh, sigmoid); relu is
    one comparison and one product; quad is one square.
    The learnt `quadratic` is a layer of its own, `Quadratic`.
    Source: docs/numerics.md#mlp-activations

    >>> activate(Activation.QUAD, jnp.array([2.0, -2.0])).tolist()
    [1.5, 0.5]
    """
    match activation:
        case Activation.GELU:
            return kernels.gelu(x)
        case Activation.GELU_TANH:
            return jax.nn.gelu(x, approximate=True)
        case Activation.GELU_SIGMOID:
            return x * jax.nn.sigmoid(1.702 * x)
        case Activation.RELU:
            return jax.nn.relu(x)
        case Activation.QUAD:
            return 0.125 * jnp.square(x) + 0.25 * x + 0.5
        case Activation.QUADRATIC:
            raise AssertionError("a learnt quadratic has parameters")


class Quadratic(nn.Module):
    """A learnt parabola for each channel, in place of GeLU.

        y = a x^2 + b x + c,  at first a = 1/4, b = 1/2, c = 0

    The first parabola is near GeLU around zero.
    Range: unbounded, and it squares outliers: something before it must bound them.
    Secure cost: one square and one product per entry; c folds into the next bias.
    Source: docs/numerics.md#quadratic
    """

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*lead hidden"]) -> Float[Array, "*lead hidden"]:
        coefficients = (
            self.param(name, nn.initializers.constant(first), x.shape[-1:]).astype(self.dtype)
            for name, first in (("square", 0.25), ("slope", 0.5), ("constant", 0.0))
        )
        rows = x.astype(self.dtype).reshape(-1, x.shape[-1])
        return kernels.quadratic(rows, *coefficients).reshape(x.shape)


class LayerNorm(nn.Module):
    """Centre and scale every token.

        y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * scale + bias

    Statistics are float32 whatever the computing type.
    Secure cost: a mean, a square and a product per entry, an rsqrt per token.
    Source: docs/numerics.md#layer-norm
    """

    eps: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*lead width"]) -> Float[Array, "*lead width"]:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        rows = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        y = kernels.normalise(rows, scale, bias, self.eps)
        return y.astype(self.dtype).reshape(x.shape)


class LinearNorm(nn.Module):
    """Scale and shift every token, and neither centre nor divide it (THE-X).

        y = x * scale + bias

    Secure cost: one product per entry, which folds into the weights around it.
    Source: docs/numerics.md#linear-norm
    """

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "*lead width"]) -> Float[Array, "*lead width"]:
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        rows = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        return (rows * scale[None] + bias[None]).astype(self.dtype).reshape(x.shape)


class BatchNorm(nn.Module):
    """Centre and scale every channel by what it is over images and tokens.

        training:    y = (x - mean(x)) / sqrt(var(x) + eps) * scale + bias
        evaluation:  y = (x - mean) / sqrt(variance + eps) * scale + bias

    In training, mean and variance are those of the images that a device takes at
    once (train.piece_size). They are also put into the collection "statistics".
    In evaluation they are constants beside scale and bias. `layer_share` of a layer
    norm with the same scale and bias is mixed in while a network is converted. A `mixed`
    norm learns that share, and mixes in evaluation too: a search decides by it.
    `clip` bounds what it gives, because an outlier is not divided by its own size.
    How far values lie beyond `FAR`, squared, is put into the collection "outliers":
    a loss that adds it keeps them few, which costs nothing in private.
    Statistics are float32 whatever the computing type.
    Secure cost: none once folded into the weights around it; a clip takes comparisons.
    Source: docs/numerics.md#batch-norm
    """

    eps: float
    clip: float = 0.0
    dtype: Any = jnp.float32
    mixed: bool = False

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "*lead width"],
        *,
        train: bool = False,
        layer_share: Array | None = None,
    ) -> Float[Array, "*lead width"]:
        zeros, ones, width = nn.initializers.zeros, nn.initializers.ones, x.shape[-1:]
        scale, bias = self.param("scale", ones, width), self.param("bias", zeros, width)
        mean, variance = self.param("mean", zeros, width), self.param("variance", ones, width)
        if self.mixed:
            layer_share = self.param("layer_share", ones, ())
        rows = x.astype(jnp.float32).reshape(-1, x.shape[-1])
        if train:
            y, mean, variance = kernels.batch_normalise(rows, scale, bias, self.eps)
            if self.is_mutable_collection("statistics"):
                self.put_variable("statistics", "mean", mean)
                self.put_variable("statistics", "variance", variance)
        else:
            gain = scale * jax.lax.rsqrt(variance + self.eps)
            y = rows * gain[None] + (bias - mean * gain)[None]
        if layer_share is not None and (train or self.mixed):
            by_token = kernels.normalise(rows, scale, bias, self.eps)
            y = (1 - layer_share) * y + layer_share * by_token
        if train and self.is_mutable_collection("outliers"):
            self.put_variable("outliers", "square", jnp.square(nn.relu(jnp.abs(y) - FAR)).mean())
        if self.clip:
            y = jnp.clip(y, -self.clip, self.clip)
        return y.astype(self.dtype).reshape(x.shape)


def merge_tokens(
    x: Float[Array, "batch token width"], before: tuple[int, int], after: tuple[int, int]
) -> Float[Array, "batch fewer width"]:
    """Merge patches from one grid to a coarser one by means; a class token stays.

    Secure cost: none but local sums; the factor folds into the next weights.
    Source: docs/numerics.md#merged-tokens

    >>> x = jnp.arange(5.0).reshape(1, 5, 1)  # class token, then two rows of two
    >>> merge_tokens(x, (2, 2), (2, 1)).ravel().tolist()
    [0.0, 1.5, 3.5]
    """
    batch, tokens, width = x.shape
    kept = tokens - before[0] * before[1]
    (rows, columns), (down, across) = after, (before[0] // after[0], before[1] // after[1])
    cells = x[:, kept:].reshape(batch, rows, down, columns, across, width)
    merged = cells.mean(axis=(2, 4)).reshape(batch, rows * columns, width)
    return jnp.concatenate([x[:, :kept], merged], axis=1) if kept else merged


def spread_tokens(
    x: Float[Array, "batch fewer width"], before: tuple[int, int], after: tuple[int, int]
) -> Float[Array, "batch token width"]:
    """Put merged patches back into all places of the finer grid that they were merged from.

    >>> x = jnp.array([[[0.0], [1.5], [3.5]]])
    >>> spread_tokens(x, (2, 2), (2, 1)).ravel().tolist()
    [0.0, 1.5, 1.5, 3.5, 3.5]
    """
    batch, tokens, width = x.shape
    kept = tokens - after[0] * after[1]
    (rows, columns), (down, across) = after, (before[0] // after[0], before[1] // after[1])
    cells = x[:, kept:].reshape(batch, rows, 1, columns, 1, width)
    cells = jnp.broadcast_to(cells, (batch, rows, down, columns, across, width))
    spread = cells.reshape(batch, before[0] * before[1], width)
    return jnp.concatenate([x[:, :kept], spread], axis=1) if kept else spread


def dropout(rng: Array, x: Array, rate: float) -> Array:
    """Set entries to zero with probability `rate`, and scale the rest to keep the mean.

    Sixteen random bits decide an entry, so the rate is a multiple of 2^-16.
    """
    kept = jax.random.bits(rng, x.shape, jnp.uint16) >= round(rate * 2**16)
    return jnp.where(kept, x / (1 - rate), 0)


def drop_path(rng: Array, x: Float[Array, "batch token width"], rate: float) -> Array:
    """Skip a residual branch for some images of a batch (stochastic depth)."""
    kept = jax.random.bernoulli(rng, 1 - rate, (x.shape[0], 1, 1))
    return jnp.where(kept, x / (1 - rate), 0)

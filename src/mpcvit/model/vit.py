"""The Vision Transformer: patches, blocks, classifier; any architecture."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpcvit.artifacts.architecture import (
    Architecture,
    LayerArchitecture,
    LayerMixture,
    Mixture,
    MlpForm,
)
from mpcvit.artifacts.config import BlockForm, ModelConfig, NormForm, Pooling
from mpcvit.attention.kind_math import Context, math_of
from mpcvit.model.gather import gather, merge
from mpcvit.model.heads import mix, route
from mpcvit.model.layers import LayerNorm, Linear, LinearNorm, activate, drop_path, dropout

Images = Float[Array, "batch row column channel"]
Tokens = Float[Array, "batch token width"]
Intermediates = dict[str, Any]


class Embed(nn.Module):
    """Cut images into patches, project them, add class token and positions."""

    config: ModelConfig
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: Images) -> Tokens:
        config = self.config
        side, patch = config.image_size // config.patch_size, config.patch_size
        batch = images.shape[0]
        patches = images.reshape(batch, side, patch, side, patch, config.channels)
        patches = patches.transpose(0, 1, 3, 2, 4, 5).reshape(batch, side * side, -1)
        x = Linear(
            patches.shape[-1],
            config.width,
            dtype=self.dtype,
            kernel_init=nn.initializers.he_normal(),
            name="patch",
        )(patches)
        if config.pooling is Pooling.CLASS:
            token = self.param("class_token", nn.initializers.zeros, (config.width,))
            token = jnp.broadcast_to(token.astype(x.dtype), (batch, 1, config.width))
            x = jnp.concatenate([token, x], axis=1)
        position = self.param(
            "position", nn.initializers.normal(stddev=0.2), (config.tokens, config.width)
        )
        return x + position.astype(x.dtype)[None]


class Attention(nn.Module):
    """Multi-head attention whose every head may be of another kind."""

    config: ModelConfig
    layer: LayerArchitecture | LayerMixture
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Tokens, *, train: bool) -> tuple[Tokens, dict[str, Array]]:
        config = self.config
        batch, tokens, width = x.shape
        qkv = Linear(width, 3 * width, use_bias=config.qkv_bias, dtype=self.dtype, name="qkv")(x)
        qkv = qkv.reshape(batch, tokens, 3, config.heads, config.head_dim)
        q, k, v = (qkv[:, :, part].transpose(0, 2, 1, 3) for part in range(3))
        drop = self._drop if train and config.attention_dropout > 0 else None
        context = Context(config=config, learned=self._learned())
        if isinstance(self.layer, LayerMixture):
            y, scores = mix(self.layer, self._alpha(self.layer), q, k, v, context, drop)
        else:
            y, scores = route(self.layer.heads, q, k, v, context, drop)
        y = y.transpose(0, 2, 1, 3).reshape(batch, tokens, width)
        return Linear(width, width, dtype=self.dtype, name="proj")(y), scores

    def _alpha(self, layer: LayerMixture) -> Array:
        shape = layer.alpha_shape(heads=self.config.heads, tokens=self.config.tokens)
        return self.param("alpha", nn.initializers.ones, shape).astype(self.dtype)

    def _drop(self, weights: Array) -> Array:
        return dropout(self.make_rng("dropout"), weights, self.config.attention_dropout)

    def _learned(self) -> dict[str, Any]:
        """Return parameters of the kinds that this layer uses, and of no others."""
        learned: dict[str, Any] = {}
        for kind in sorted(self.layer.kinds, key=str):
            if (learn := math_of(kind).learn) is not None:
                learned |= learn(self, self.config, self.dtype)
        return learned


class Mlp(nn.Module):
    """Two linears with a non-linearity between, for the tokens that keep it."""

    config: ModelConfig
    layer: LayerArchitecture | LayerMixture
    dtype: Any = jnp.float32

    def setup(self) -> None:
        width, hidden = self.config.width, self.config.hidden
        self.up = Linear(width, hidden, dtype=self.dtype)
        self.down = Linear(hidden, width, dtype=self.dtype)
        self.fused = Linear(width, width, dtype=self.dtype)
        if isinstance(self.layer, LayerMixture) and self._choices:
            self.beta = self.param("beta", nn.initializers.ones, (self._choices,))

    @property
    def _choices(self) -> int:
        assert isinstance(self.layer, LayerMixture)
        return self.layer.beta_size(tokens=self.config.tokens)

    def __call__(self, x: Tokens, *, train: bool) -> Tokens:
        if isinstance(self.layer, LayerMixture):
            return (
                self._mixed(x, train) if self._choices else self._apply(MlpForm.ACTIVATED, x, train)
            )
        forms = self.layer.mlp
        if not isinstance(forms, tuple):
            return self._apply(forms, x, train)
        tokens_of = {
            form: [token for token, own in enumerate(forms) if own is form]
            for form in dict.fromkeys(forms)
        }
        parts = [
            self._apply(form, gather(x, tokens, axis=1), train)
            for form, tokens in tokens_of.items()
        ]
        return merge(parts, list(tokens_of.values()), axis=1)

    def _apply(self, form: MlpForm, x: Tokens, train: bool) -> Tokens:
        if form.is_fused:
            y = self._fused(x)
        else:
            hidden = self.up(x)
            if form.keeps_activation:
                hidden = activate(self.config.activation, hidden)
            y = self.down(self._drop(hidden, train))
        return jax.nn.relu(y) if form.ends_in_relu else y

    def _mixed(self, x: Tokens, train: bool) -> Tokens:
        """(beta gelu(h) + (1 - beta) h) W2, h = x W1, with a beta per token or one."""
        hidden, beta = self.up(x), self.beta.astype(self.dtype)[None, :, None]
        hidden = beta * activate(self.config.activation, hidden) + (1 - beta) * hidden
        return self.down(self._drop(hidden, train))

    def _fused(self, x: Tokens) -> Tokens:
        """x (W1 W2) + (b1 W2 + b2): the two linears as one.

        Secret weights must not be multiplied under MPC: their owner does that
        beforehand, by `fuse_linears`. Training learns both linears.
        """
        if self.has_variable("params", "fused"):
            return self.fused(x)
        kernel = self.up.kernel @ self.down.kernel
        bias = self.up.bias @ self.down.kernel + self.down.bias
        return x @ kernel.astype(self.dtype) + bias.astype(self.dtype)

    def _drop(self, x: Array, train: bool) -> Array:
        rate = self.config.dropout
        return dropout(self.make_rng("dropout"), x, rate) if train and rate > 0 else x


class Block(nn.Module):
    """Attention and MLP with their residuals, in either block form."""

    config: ModelConfig
    layer: LayerArchitecture | LayerMixture
    depth_rate: float
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Tokens, *, train: bool) -> tuple[Tokens, Intermediates]:
        config = self.config
        norm1 = _norm(config, "norm1", self.dtype)
        norm2 = _norm(config, "norm2", self.dtype)
        attention = Attention(config, self.layer, dtype=self.dtype, name="attention")
        mlp = Mlp(config, self.layer, dtype=self.dtype, name="mlp")

        y, scores = attention(norm1(x), train=train)
        x = x + self._branch(y, train)
        if config.block is BlockForm.LITE:
            x = norm2(x)
            x = x + self._branch(mlp(x, train=train), train)
        else:
            x = x + self._branch(mlp(norm2(x), train=train), train)
        return x, {"scores": scores, "attention": y, "output": x}

    def _branch(self, x: Tokens, train: bool) -> Tokens:
        if train and self.config.dropout > 0:
            x = dropout(self.make_rng("dropout"), x, self.config.dropout)
        if train and self.depth_rate > 0:
            x = drop_path(self.make_rng("dropout"), x, self.depth_rate)
        return x


class Head(nn.Module):
    """What follows the last block, on its own: norm, pooling and classifier."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: Tokens) -> Float[Array, "batch classes"]:
        return _classify(self.config, x)[0]


def _classify(config: ModelConfig, x: Tokens) -> tuple[Float[Array, "batch classes"], Tokens]:
    """Logits and normalised tokens; the submodules belong to the module that calls this."""
    x = _norm(config, "norm")(x)
    pooled = x[:, 0] if config.pooling is Pooling.CLASS else x.mean(axis=1)
    return Linear(config.width, config.classes, name="head")(pooled), x


class ViT(nn.Module):
    """A Vision Transformer that runs any `Architecture` of its shape, or a `Mixture`.

    Gives logits and named intermediates: `blocks` (per block `scores`,
    `attention` and `output`) and `features`, the normalised tokens after the
    last block. Under jit, what a caller does not use is not computed.
    """

    config: ModelConfig
    architecture: Architecture | Mixture
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, images: Images, *, train: bool = False
    ) -> tuple[Float[Array, "batch classes"], Intermediates]:
        config = self.config
        self.architecture.validate(depth=config.depth, heads=config.heads, tokens=config.tokens)
        x = Embed(config, dtype=self.dtype, name="embed")(images)
        if train and config.dropout > 0:
            x = dropout(self.make_rng("dropout"), x, config.dropout)
        blocks = []
        for index, layer in enumerate(self.architecture.layers):
            depth_rate = config.stochastic_depth * index / max(1, config.depth - 1)
            block = Block(config, layer, depth_rate, dtype=self.dtype, name=f"blocks_{index}")
            x, intermediates = block(x, train=train)
            blocks.append(intermediates)
        logits, features = _classify(config, x)
        return logits, {"blocks": blocks, "features": features}


def _norm(config: ModelConfig, name: str, dtype: Any = jnp.float32) -> nn.Module:
    if config.norm is NormForm.LINEAR:
        return LinearNorm(dtype, name=name)
    return LayerNorm(config.norm_eps, dtype, name=name)


def init_parameters(
    config: ModelConfig, architecture: Architecture | Mixture, seed: int
) -> dict[str, Any]:
    """Fresh parameters, the same for the same seed."""
    model = ViT(config, architecture)
    images = jnp.zeros((1, config.image_size, config.image_size, config.channels))
    return jax.jit(model.init)(jax.random.key(seed), images)["params"]

"""The Vision Transformer: patches, blocks, classifier; any architecture."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.choices import LayerMixture, Mixture
from mpcvit.artifacts.config import BlockForm, ModelConfig, Pooling
from mpcvit.artifacts.forms import Activation, LayerForm, NormForm
from mpcvit.artifacts.resolve import forms_of, head_norm_of, validate
from mpcvit.attention.kind_math import Context, gather, math_of, merge
from mpcvit.model.heads import mix, route
from mpcvit.model.layers import (
    BatchNorm,
    LayerNorm,
    Linear,
    LinearNorm,
    Quadratic,
    activate,
    drop_path,
    dropout,
    merge_tokens,
    spread_tokens,
)

Images = Float[Array, "batch row column channel"]
Tokens = Float[Array, "batch token width"]
FewerTokens = Float[Array, "batch kept_token width"]
Intermediates = dict[str, Any]


class Embed(nn.Module):
    """Cut images into patches, project them, add leading tokens and positions.

    An extra token has no parameter of its own: its position is all that it is at first.
    """

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
        if config.extra_tokens:
            extra = jnp.zeros((batch, config.extra_tokens, config.width), x.dtype)
            x = jnp.concatenate([extra, x], axis=1)
        if config.has_class_token:
            token = self.param("class_token", nn.initializers.zeros, (config.width,))
            token = jnp.broadcast_to(token.astype(x.dtype), (batch, 1, config.width))
            x = jnp.concatenate([token, x], axis=1)
        position = self.param(
            "position", nn.initializers.normal(stddev=0.2), (config.tokens, config.width)
        )
        x = x + position.astype(x.dtype)[None]
        return LayerNorm(config.norm_eps, self.dtype, name="norm")(x) if config.embed_norm else x


class Attention(nn.Module):
    """Multi-head attention whose every head may be of another kind."""

    config: ModelConfig
    layer: LayerArchitecture | LayerMixture
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Tokens, *, train: bool) -> tuple[Tokens, dict[str, Array]]:
        config = self.config
        batch, tokens, width = x.shape
        narrow = config.heads * config.qk_dim
        outputs, use_bias = 2 * narrow + width, config.qkv_bias
        qkv = Linear(width, outputs, use_bias=use_bias, dtype=self.dtype, name="qkv")(x)
        q, k, v = (
            part.reshape(batch, tokens, config.heads, -1).transpose(0, 2, 1, 3)
            for part in jnp.split(qkv, (narrow, 2 * narrow), axis=-1)
        )
        drop = self._drop if train and config.attention_dropout > 0 else None
        context = Context(config=config, learned=self._learned(tokens))
        if isinstance(self.layer, LayerMixture):
            y, scores = mix(self.layer, self._alpha(self.layer, tokens), q, k, v, context, drop)
        else:
            y, scores = route(self.layer.heads, q, k, v, context, drop)
        y = y.transpose(0, 2, 1, 3).reshape(batch, tokens, width)
        return Linear(width, width, dtype=self.dtype, name="proj")(y), scores

    def _alpha(self, layer: LayerMixture, tokens: int) -> Array:
        shape = layer.alpha_shape(heads=self.config.heads, tokens=tokens)
        return self.param("alpha", nn.initializers.ones, shape).astype(self.dtype)

    def _drop(self, weights: Array) -> Array:
        return dropout(self.make_rng("dropout"), weights, self.config.attention_dropout)

    def _learned(self, tokens: int) -> dict[str, Any]:
        """Return parameters of the kinds that this layer uses, and of no others."""
        learned: dict[str, Any] = {}
        for kind in sorted(self.layer.kinds, key=str):
            if (learn := math_of(kind).learn) is not None:
                learned |= learn(self, self.config, self.dtype, tokens)
        return learned


class Mlp(nn.Module):
    """Two linears with a non-linearity between, for the tokens that keep it."""

    config: ModelConfig
    layer: LayerArchitecture | LayerMixture
    form: LayerForm
    dtype: Any = jnp.float32

    def setup(self) -> None:
        width, hidden = self.config.width, self.config.hidden
        self.quadratic = Quadratic(dtype=self.dtype)
        self.up = Linear(width, hidden, dtype=self.dtype)
        self.down = Linear(hidden, width, dtype=self.dtype)
        self.fused = Linear(width, width, dtype=self.dtype)
        if isinstance(self.layer, LayerMixture) and self._choices:
            self.beta = self.param("beta", nn.initializers.ones, (self._choices,))

    @property
    def _choices(self) -> int:
        assert isinstance(self.layer, LayerMixture)
        return self.layer.beta_size(tokens=self.form.tokens)

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
                hidden = self._activate(hidden)
            y = self.down(self._drop(hidden, train))
        return jax.nn.relu(y) if form.ends_in_relu else y

    def _mixed(self, x: Tokens, train: bool) -> Tokens:
        """(beta gelu(h) + (1 - beta) h) W2, h = x W1, with a beta per token or one.

        Against a learnt quadratic: (beta gelu(h) + (1 - beta) quadratic(h)) W2.
        """
        assert isinstance(self.layer, LayerMixture)
        hidden, beta = self.up(x), self.beta.astype(self.dtype)[None, :, None]
        other = self.quadratic(hidden) if self.layer.quadratic else hidden
        hidden = beta * self._activate(hidden) + (1 - beta) * other
        return self.down(self._drop(hidden, train))

    def _activate(self, x: Array) -> Array:
        activation = self.form.activation
        learnt = activation is Activation.QUADRATIC
        return self.quadratic(x) if learnt else activate(activation, x)

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
    form: LayerForm
    depth_rate: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: Tokens, *, train: bool, layer_share: Array | None = None
    ) -> tuple[FewerTokens, Intermediates]:
        config, form, run = self.config, self.form, {"train": train, "layer_share": layer_share}
        norm1 = _norm(config, self._norm(form.norm1), "norm1", self.dtype, **run)
        norm2 = _norm(config, self._norm(form.norm2), "norm2", self.dtype, **run)
        attention = Attention(config, self.layer, dtype=self.dtype, name="attention")
        mlp = Mlp(config, self.layer, form, dtype=self.dtype, name="mlp")
        x = merge_to(config, x, form.tokens)
        if isinstance(self.layer, LayerMixture) and self.layer.token_counts:
            x = self._mix_tokens(x, self.layer.token_counts)

        y, scores = attention(norm1(x), train=train)
        x = x + self._branch(y, train)
        if config.block is BlockForm.LITE:
            x = norm2(x)
            x = x + self._branch(mlp(x, train=train), train)
        else:
            x = x + self._branch(mlp(norm2(x), train=train), train)
        return x, {"scores": scores, "attention": y, "output": x}

    def _norm(self, form: NormForm) -> NormForm | None:
        """Return the form of a norm, or None while a search decides."""
        return None if isinstance(self.layer, LayerMixture) and self.layer.norm else form

    def _mix_tokens(self, x: Tokens, counts: tuple[int, ...]) -> Tokens:
        """x = t x + (1 - t) merged(x), for each count; merged tokens stand in all their places."""
        shares = self.param("token_shares", nn.initializers.ones, (len(counts),))
        for share, count in zip(shares.astype(self.dtype), counts, strict=True):
            before, after = _grids(self.config, x.shape[1], count)
            merged = spread_tokens(merge_tokens(x, before, after), before, after)
            x = share * x + (1 - share) * merged
        return x

    def _branch(self, x: Tokens, train: bool) -> Tokens:
        if train and self.config.dropout > 0:
            x = dropout(self.make_rng("dropout"), x, self.config.dropout)
        if train and self.depth_rate > 0:
            x = drop_path(self.make_rng("dropout"), x, self.depth_rate)
        return x


class Head(nn.Module):
    """The end of a network, on its own: norm, pooling and classifier."""

    config: ModelConfig
    norm: NormForm

    @nn.compact
    def __call__(self, x: Tokens) -> Float[Array, "batch classes"]:
        return _classify(self.config, self.norm, x)[0]


def _classify(
    config: ModelConfig, form: NormForm | None, x: Tokens, **run: Any
) -> tuple[Float[Array, "batch classes"], Tokens]:
    """Return logits and the last tokens, normalised unless the norm comes after pooling.

    The submodules belong to the module that calls this.
    """
    norm = _norm(config, form, "norm", **run)
    if config.pooled_norm:
        pooled = norm(pool(config, x))
    else:
        x = norm(x)
        pooled = pool(config, x)
    return Linear(config.pooled_width, config.classes, name="head")(pooled), x


def pool(config: ModelConfig, x: Tokens) -> Float[Array, "batch pooled"]:
    """Return what the head reads of tokens."""
    match config.pooling:
        case Pooling.CLASS:
            return x[:, 0]
        case Pooling.CLASS_EXTRA:
            return x[:, :2].reshape(x.shape[0], -1)
    leading = config.leading_tokens
    mean = (x[:, leading:] if leading else x).mean(axis=1)
    is_mean = config.pooling is Pooling.MEAN
    return mean if is_mean else jnp.concatenate([x[:, 0], mean], axis=-1)


class ViT(nn.Module):
    """A Vision Transformer that runs any `Architecture` of its shape, or a `Mixture`.

    Gives logits and named intermediates: `blocks` (per block `scores`,
    `attention` and `output`) and `features`, the normalised tokens after the
    last block. Under jit, what a caller does not use is not computed. With `remat`,
    gradients compute the inside of each block again instead of holding it in memory.
    """

    config: ModelConfig
    architecture: Architecture | Mixture
    dtype: Any = jnp.float32
    remat: bool = False

    @nn.compact
    def __call__(
        self, images: Images, *, train: bool = False, layer_share: Array | None = None
    ) -> tuple[Float[Array, "batch classes"], Intermediates]:
        config, run = self.config, {"train": train, "layer_share": layer_share}
        validate(config, self.architecture)
        forms = forms_of(config, self.architecture)
        x = Embed(config, dtype=self.dtype, name="embed")(images)
        if train and config.dropout > 0:
            x = dropout(self.make_rng("dropout"), x, config.dropout)
        blocks = []

        def run_block(block: Block, x: Tokens) -> tuple[FewerTokens, Intermediates]:
            return block(x, **run)

        if self.remat:
            run_block = nn.remat(run_block)
        for index, layer in enumerate(self.architecture.layers):
            rate = config.stochastic_depth * index / max(1, config.depth - 1)
            block = Block(config, layer, forms[index], rate, self.dtype, name=f"blocks_{index}")
            x, intermediates = run_block(block, x)
            blocks.append(intermediates)
        norm = head_norm_of(config, self.architecture)
        if isinstance(self.architecture, Mixture) and self.architecture.mixes_norms:
            norm = None
        logits, features = _classify(config, norm, x, **run)
        return logits, {"blocks": blocks, "features": features}


def _norm(
    config: ModelConfig, form: NormForm | None, name: str, dtype: Any = jnp.float32, **run: Any
) -> Callable[[Array], Array]:
    """Return a norm that belongs to the module that calls this; None: both at once."""
    match form:
        case None:
            return partial(BatchNorm(config.norm_eps, 0.0, dtype, mixed=True, name=name), **run)
        case NormForm.LAYER:
            return LayerNorm(config.norm_eps, dtype, name=name)
        case NormForm.LINEAR:
            return LinearNorm(dtype, name=name)
        case NormForm.BATCH:
            return partial(BatchNorm(config.norm_eps, config.clip, dtype, name=name), **run)


def merge_to(config: ModelConfig, x: Tokens, tokens: int) -> FewerTokens:
    """Merge neighbouring tokens by means until `tokens` are left."""
    return x if x.shape[1] == tokens else merge_tokens(x, *_grids(config, x.shape[1], tokens))


def _grids(config: ModelConfig, before: int, after: int) -> tuple[tuple[int, int], tuple[int, int]]:
    fine, coarse = config.grid(before), config.grid(after)
    assert fine is not None
    assert coarse is not None
    return fine, coarse


def init_parameters(
    config: ModelConfig, architecture: Architecture | Mixture, seed: int
) -> dict[str, Any]:
    """Return fresh parameters, the same for the same seed."""
    model = ViT(config, architecture)
    images = jnp.zeros((1, config.image_size, config.image_size, config.channels))
    return jax.jit(model.init)(jax.random.key(seed), images)["params"]


@lru_cache(maxsize=256)
def parameter_shapes(config: ModelConfig, architecture: Architecture | Mixture) -> dict[str, Any]:
    """Return the shapes of a model's parameters, for which its network is traced once."""
    return jax.eval_shape(lambda: init_parameters(config, architecture, seed=0))

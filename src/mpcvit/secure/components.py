"""Pieces of a network as functions of random arrays, to be probed for their cost.

Cost does not depend on values, so random weights serve.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpChoice
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.resolve import forms_of
from mpcvit.attention.kind_math import Context, attend, attention_scores, math_of
from mpcvit.kinds.table import Kind, find_kind
from mpcvit.model.checkpoint import fuse_linears
from mpcvit.model.layers import activate
from mpcvit.model.vit import Attention, Mlp


@dataclass(frozen=True, kw_only=True)
class Component:
    """A function, and arrays to call it with."""

    function: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, function: Callable[..., Any], *arguments: Any) -> "Component":
        """Flatten arguments that are trees, as secret inputs are arrays."""
        leaves, structure = jax.tree.flatten(arguments)

        def flat(*arrays: Any) -> Any:
            return function(*jax.tree.unflatten(structure, arrays))

        return cls(function=flat, inputs=tuple(np.asarray(leaf, np.float32) for leaf in leaves))


def find_component(name: str, config: ModelConfig) -> Component:
    """Return a component by a name that both sides of a measurement know, such as block/gelu."""
    group, _, member = name.partition("/")
    match group:
        case "attention":
            return attention_layer(find_kind(member), config)
        case "block":
            return block_parts(config)[member]
        case "softmax":
            return softmax_parts(config)[member]
    raise KeyError(name)


class _Core(nn.Module):
    """A kind without the linears around it, and with what it learns."""

    kind: Kind
    config: ModelConfig

    @nn.compact
    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        learn = math_of(self.kind).learn
        learned = {} if learn is None else learn(self, self.config, jnp.float32, self.config.tokens)
        return attend(self.kind, q, k, v, Context(config=self.config, learned=learned))[0]


def attention_core(kind: Kind, config: ModelConfig, heads: int) -> Component:
    """Return the way from queries, keys and values to outputs, for some heads of one kind."""
    config = replace(config, heads=heads, width=heads * config.head_dim)
    q, k, v = _random(3, 1, heads, config.tokens, config.head_dim)
    return _of_module(_Core(kind, config), q, k, v)


def attention_layer(kind: Kind, config: ModelConfig) -> Component:
    """Return a whole attention layer of one kind, with the products around its heads."""
    module = Attention(config, LayerArchitecture(heads=(kind,) * config.heads))
    return _of_module(module, _random(1, config.tokens, config.width), train=False)


def mlp(forms: MlpChoice, config: ModelConfig, tokens: int) -> Component:
    """Return an MLP of some tokens, in one form or several, with weights as owners share them."""
    layer = LayerArchitecture(heads=(), mlp=forms)
    alone = Architecture(layers=(layer,))
    module = Mlp(config, layer, replace(forms_of(config, alone)[0], tokens=tokens))
    x = _random(1, tokens, config.width)
    block = {"blocks_0": {"mlp": _init(module, x, train=False)}}
    shared = fuse_linears(alone, block)["blocks_0"]["mlp"]

    def function(parameters: Any, x: Any) -> Any:
        return module.apply({"params": parameters}, x, train=False)

    return Component.of(function, shared, x)


def block_parts(config: ModelConfig) -> dict[str, Component]:
    """Return the parts of a softmax block, by the names of the paper's breakdown."""
    n, d, heads = config.tokens, config.head_dim, config.heads
    x, hidden = _random(1, n, config.width), _random(1, n, config.hidden)
    scores = _random(1, heads, n, n)
    values = _random(1, heads, n, d)

    def linears(x: Any, hidden: Any, qkv: Any, proj: Any, up: Any, down: Any) -> Any:
        return (x @ qkv).sum() + (x @ proj).sum() + (x @ up).sum() + (hidden @ down).sum()

    def products(q: Any, k: Any, weights: Any, v: Any) -> Any:
        return attention_scores(q, k).sum() + (weights @ v).sum()

    def norms(x: Any) -> Any:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = jnp.square(centred).mean(axis=-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + 1e-5) * x

    width = config.width
    weights = [
        _random(*shape) for shape in ((width, 3 * width), (width, width), (width, config.hidden))
    ]
    return {
        "softmax": Component.of(lambda s: jax.nn.softmax(s, axis=-1), scores),
        "gelu": Component.of(lambda h: activate(config.activation, h), hidden),
        "linears": Component.of(linears, x, hidden, *weights, _random(config.hidden, width)),
        "attention products": Component.of(products, values, values, scores, values),
        "norms": Component.of(lambda a, b: norms(a) + norms(b), x, x),
    }


def softmax_parts(config: ModelConfig) -> dict[str, Component]:
    """Return the parts of softmax over a layer's scores."""
    scores = _random(1, config.heads, config.tokens, config.tokens)
    return {
        "max": Component.of(lambda s: s.max(axis=-1, keepdims=True), scores),
        "exponential": Component.of(lambda s: jnp.exp(s), scores),
        "reciprocal": Component.of(lambda s: s / s.sum(axis=-1, keepdims=True), np.abs(scores)),
    }


def _of_module(module: nn.Module, *arrays: np.ndarray, **settings: Any) -> Component:
    """Return a module with fresh parameters; of several outputs the first."""

    def function(parameters: Any, *arrays: Any) -> Any:
        outputs = module.apply({"params": parameters}, *arrays, **settings)
        return outputs[0] if isinstance(outputs, tuple) else outputs

    return Component.of(function, _init(module, *arrays, **settings), *arrays)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _init(module: Any, *arguments: Any, **settings: Any) -> Any:
    arrays = (jnp.asarray(array, jnp.float32) for array in arguments)
    return module.init(jax.random.key(0), *arrays, **settings).get("params", {})

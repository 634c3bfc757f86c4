"""Pieces of a network as functions of random arrays, to be probed for their cost.

Cost does not depend on values, so random weights serve.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mpcvit.artifacts.architecture import Architecture, AttentionKind, LayerArchitecture, MlpChoice
from mpcvit.artifacts.config import ModelConfig
from mpcvit.model.attention import KindParameters, attend, attention_scores
from mpcvit.model.fuse import fuse_linears
from mpcvit.model.layers import activate
from mpcvit.model.vit import Attention, Inverse, Mlp


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
    """A component by a name that both sides of a measurement know, such as block/gelu."""
    group, _, member = name.partition("/")
    match group:
        case "attention":
            return attention_layer(AttentionKind(member), config)
        case "block":
            return block_parts(config)[member]
        case "softmax":
            return softmax_parts(config)[member]
    raise KeyError(name)


def attention_core(kind: AttentionKind, config: ModelConfig, heads: int) -> Component:
    """From queries, keys and values to outputs, for some heads of one kind."""
    config = replace(config, heads=heads, width=heads * config.head_dim)
    q, k, v = _random(3, 1, heads, config.tokens, config.head_dim)
    learned: dict[str, Any] = {}
    if kind is AttentionKind.LINFORMER:
        shape = (config.linformer_tokens, config.tokens)
        learned = {"key_projection": _random(*shape), "value_projection": _random(*shape)}
    elif kind is AttentionKind.XNORM:
        learned = {"gamma": np.ones(heads, np.float32)}
    elif kind is AttentionKind.THE_X:
        learned = {"inverse": _init(Inverse(config), np.ones((1, heads, config.tokens, 1)))}

    def function(q: Any, k: Any, v: Any, learned: dict[str, Any]) -> Any:
        parameters = dict(learned)
        if "inverse" in learned:
            parameters["inverse"] = lambda sums: Inverse(config).apply(
                {"params": learned["inverse"]}, sums
            )
        own = KindParameters(**parameters)
        return attend(kind, q, k, v, config=config, learned=own)[0]

    return Component.of(function, q, k, v, learned)


def attention_layer(kind: AttentionKind, config: ModelConfig) -> Component:
    """A whole attention layer of one kind, with the products around its heads."""
    layer = LayerArchitecture(heads=(kind,) * config.heads)
    module = Attention(config, layer)
    x = _random(1, config.tokens, config.width)

    def function(parameters: Any, x: Any) -> Any:
        return module.apply({"params": parameters}, x, train=False)[0]

    return Component.of(function, _init(module, x, train=False), x)


def mlp(forms: MlpChoice, config: ModelConfig, tokens: int) -> Component:
    """An MLP of some tokens, all of one form or each of its own, with weights as owners share."""
    layer = LayerArchitecture(heads=(), mlp=forms)
    module = Mlp(config, layer)
    x = _random(1, tokens, config.width)
    block = {"blocks_0": {"mlp": _init(module, x, train=False)}}
    shared = fuse_linears(Architecture(layers=(layer,)), block)["blocks_0"]["mlp"]

    def function(parameters: Any, x: Any) -> Any:
        return module.apply({"params": parameters}, x, train=False)

    return Component.of(function, shared, x)


def block_parts(config: ModelConfig) -> dict[str, Component]:
    """What a softmax block is made of, by the names of the paper's breakdown."""
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
    """What softmax over a layer's scores is made of."""
    scores = _random(1, config.heads, config.tokens, config.tokens)
    return {
        "max": Component.of(lambda s: s.max(axis=-1, keepdims=True), scores),
        "exponential": Component.of(lambda s: jnp.exp(s), scores),
        "reciprocal": Component.of(lambda s: s / s.sum(axis=-1, keepdims=True), np.abs(scores)),
    }


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def _init(module: Any, *arguments: Any, **settings: Any) -> Any:
    arrays = (jnp.asarray(array, jnp.float32) for array in arguments)
    return module.init(jax.random.key(0), *arrays, **settings)["params"]

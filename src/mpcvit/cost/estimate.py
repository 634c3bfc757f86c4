"""A latency table modelled from counts per operation, with nothing run.

The counts are SPU 0.9.5's for SEMI-2K in a 64-bit ring with 18 fraction bits,
for the network as it is written, before any lowering. Exchanges do not depend
on an operation's size, but for a product's batch, over which SPU loops, and for
softmax's max, a tree over the keys; bytes grow with the elements. Local
computing is not modelled.
"""

import math
from dataclasses import dataclass

from mpcvit.artifacts.architecture import AttentionKind, MlpForm
from mpcvit.artifacts.config import Activation, ModelConfig, NormForm
from mpcvit.artifacts.latency import WAN, ChoiceCost, Cost, LatencyTable, LayerCosts
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.codec import encode

SOURCE = (
    "modelled from counts per operation (SPU 0.9.5, SEMI-2K, 64-bit ring, 18 fraction bits); "
    "local computing is not included"
)

_RING_BYTES = 8
_TRUNCATED_BYTES = 4  # per element, by one party


@dataclass(frozen=True, kw_only=True)
class _Elementwise:
    """An operation on each of many elements at once."""

    exchanges: int
    bytes_per_element: int

    def of(self, elements: float) -> Cost:
        return Cost(exchanges=self.exchanges, sent_bytes=self.bytes_per_element * elements)


_CONSTANT = _Elementwise(exchanges=1, bytes_per_element=_TRUNCATED_BYTES)  # public times secret
_PRODUCT = _Elementwise(exchanges=2, bytes_per_element=20)
_RELU = _Elementwise(exchanges=8, bytes_per_element=72)
_DIVISION = _Elementwise(exchanges=38, bytes_per_element=526)
_RSQRT = _Elementwise(exchanges=26, bytes_per_element=461)
_RELU_SOFTMAX = _Elementwise(exchanges=46, bytes_per_element=598)
_ACTIVATIONS = {
    Activation.GELU: _Elementwise(exchanges=64, bytes_per_element=749),
    Activation.GELU_TANH: _Elementwise(exchanges=45, bytes_per_element=396),
    Activation.GELU_SIGMOID: _Elementwise(exchanges=56, bytes_per_element=629),
    Activation.RELU: _RELU,
    Activation.QUAD: _Elementwise(exchanges=4, bytes_per_element=28),
}


def estimate(model: ModelConfig, network: NetworkLink = WAN) -> LatencyTable:
    """The table of a model's every choice."""
    norm = _norm(model)
    width, tokens = model.width, model.tokens
    patch_values = model.patch_size**2 * model.channels
    per_layer = norm.times(2) + _matmul(tokens, width, 3 * width) + _matmul(tokens, width, width)
    rest = (
        _matmul(model.patches, patch_values, width)
        + per_layer.times(model.depth)
        + norm
        + _matmul(1, width, model.classes)
    )
    layer = LayerCosts(
        attention={kind: _attention(kind, model) for kind in AttentionKind},
        mlp={form: _mlp(form, model) for form in MlpForm},
    )
    return LatencyTable(
        source=SOURCE,
        network=network,
        heads=model.heads,
        tokens=tokens,
        layers=(layer,) * model.depth,
        rest=rest,
        details={"model": encode(model)},
    )


def _linear(inputs: int, outputs: int) -> ChoiceCost:
    """x W: the weights are opened once under a mask, and so is every row of x."""
    return ChoiceCost(
        shared=Cost(exchanges=2, sent_bytes=_RING_BYTES * inputs * outputs),
        per_unit=Cost(sent_bytes=_RING_BYTES * inputs + _TRUNCATED_BYTES * outputs),
    )


def _matmul(rows: int, inner: int, columns: int) -> Cost:
    return _linear(inner, columns).total(rows)


def _norm(model: ModelConfig) -> Cost:
    entries = model.tokens * model.width
    if model.norm is NormForm.LINEAR:
        return _PRODUCT.of(entries)
    means = _CONSTANT.of(model.tokens).times(2)
    return means + _PRODUCT.of(entries).times(3) + _RSQRT.of(model.tokens)


def _attention(kind: AttentionKind, model: ModelConfig) -> ChoiceCost:
    """A kind's products run head by head; its other operations take all heads at once."""
    n, d = model.tokens, model.head_dim
    keys = model.linformer_tokens if kind is AttentionKind.LINFORMER else n
    quadratic = _matmul(n, d, keys) + _matmul(n, keys, d)
    linear = _matmul(d, n, d) + _matmul(n, d, d)
    scale, entries = _CONSTANT.of(n * d), n * keys
    # 8 exchanges for each level of the tree that finds the largest score
    softmax = _Elementwise(exchanges=63 + 8 * math.ceil(math.log2(keys)), bytes_per_element=698)
    match kind:
        case AttentionKind.SOFTMAX:
            return _shared(quadratic, scale, softmax.of(entries))
        case AttentionKind.LINFORMER:
            compressed = _matmul(keys, n, d).times(2)
            return _shared(quadratic, scale, compressed, softmax.of(entries))
        case AttentionKind.RELU:
            return _shared(quadratic, scale, _RELU.of(entries))
        case AttentionKind.RELU6 | AttentionKind.SPARSEMAX:
            return _shared(quadratic, scale, _RELU.of(entries).times(2))
        case AttentionKind.XNORM:
            normalised = _PRODUCT.of(n * d + d * d).times(3) + _RSQRT.of(n + d)
            # the second norm waits for the product that the first one enters
            return _shared(linear, normalised, Cost(exchanges=normalised.exchanges))
        case AttentionKind.SQUARE:
            return _shared(quadratic, scale, _PRODUCT.of(entries))
        case AttentionKind.QUAD2:
            return _shared(quadratic, scale, _PRODUCT.of(entries), _DIVISION.of(entries))
        case AttentionKind.SCALING:
            return _shared(linear, scale.times(2))
        case AttentionKind.RELU_SOFTMAX:
            return _shared(quadratic, scale, _RELU_SOFTMAX.of(entries))
        case AttentionKind.THE_X:
            hidden = model.the_x_hidden
            cubes = _CONSTANT.of(entries) + _PRODUCT.of(entries).times(2) + _RELU.of(entries)
            inverse = _matmul(n, 1, hidden) + _matmul(n, hidden, hidden) + _matmul(n, hidden, 1)
            ends = _RELU.of(n * hidden).times(2) + _CONSTANT.of(n).times(2)
            return _shared(quadratic, scale, cubes, inverse, ends, _PRODUCT.of(entries))


def _shared(head_by_head: Cost, *together: Cost) -> ChoiceCost:
    """Operations that take all heads together share exchanges, not bytes."""
    total = sum(together, Cost())
    return ChoiceCost(
        shared=Cost(exchanges=total.exchanges),
        per_unit=head_by_head + Cost(sent_bytes=total.sent_bytes),
    )


def _mlp(form: MlpForm, model: ModelConfig) -> ChoiceCost:
    width, hidden = model.width, model.hidden
    total = _linear(width, width)
    if not form.is_fused:
        total = _linear(width, hidden) + _linear(hidden, width)
    if form.keeps_activation:
        total += _shared(Cost(), _ACTIVATIONS[model.activation].of(hidden))
    if form.ends_in_relu:
        total += _shared(Cost(), _RELU.of(width))
    return total

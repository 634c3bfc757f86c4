"""Prices of every choice, and forecasts of one private inference, with nothing run.

Networks as written are priced by counts per operation (`kinds/costs.py`). Lowered ones, memory and
computing are sums over shapes, whose coefficients were fitted to runs (`mpcvit bench forecast`).
"""

from dataclasses import dataclass

from mpcvit.artifacts.architecture import Architecture, MlpForm, kinds_of
from mpcvit.artifacts.config import Activation, ModelConfig, NormForm
from mpcvit.artifacts.latency import WAN, LatencyTable, LayerCosts
from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.resolve import forms_of, require_plain
from mpcvit.codec import encode
from mpcvit.errors import UserError
from mpcvit.kinds.costs import (
    CONSTANT,
    PRODUCT,
    RELU,
    RSQRT,
    ChoiceCost,
    Cost,
    Elementwise,
    linear,
    matmul,
    share_exchanges,
)
from mpcvit.kinds.table import KINDS, LINFORMER, QUAD2, RELU_SOFTMAX, SCALING, SOFTMAX, THE_X, Kind

SOURCE = (
    "modelled from counts per operation (SPU 0.9.5, SEMI-2K, 64-bit ring, 18 fraction bits); "
    "local computing is not included"
)

_ACTIVATIONS = {
    Activation.GELU: Elementwise(exchanges=64, bytes_per_element=749),
    Activation.GELU_TANH: Elementwise(exchanges=45, bytes_per_element=396),
    Activation.GELU_SIGMOID: Elementwise(exchanges=56, bytes_per_element=629),
    Activation.RELU: RELU,
    Activation.QUAD: Elementwise(exchanges=4, bytes_per_element=28),
}


def estimate(model: ModelConfig, network: NetworkLink = WAN) -> LatencyTable:
    """Return the prices of every choice of a model."""
    uniform = Architecture.uniform(model.attention, depth=model.depth, heads=model.heads)
    require_plain(model, uniform, "the modelled latency table")
    norm = _norm(model)
    width, tokens = model.width, model.tokens
    patch_values = model.patch_size**2 * model.channels
    per_layer = norm.times(2) + matmul(tokens, width, 3 * width) + matmul(tokens, width, width)
    rest = (
        matmul(model.patches, patch_values, width)
        + per_layer.times(model.depth)
        + norm.times(1 + model.embed_norm)
        + matmul(1, model.pooled_width, model.classes)
    )
    layer = LayerCosts(
        attention={kind: kind.cost(model) for kind in KINDS.values()},
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


def _norm(model: ModelConfig) -> Cost:
    entries = model.tokens * model.width
    if model.norm is NormForm.LINEAR:
        return PRODUCT.of(entries)
    means = CONSTANT.of(model.tokens).times(2)
    return means + PRODUCT.of(entries).times(3) + RSQRT.of(model.tokens)


def _mlp(form: MlpForm, model: ModelConfig) -> ChoiceCost:
    width, hidden = model.width, model.hidden
    total = linear(width, width)
    if not form.is_fused:
        total = linear(width, hidden) + linear(hidden, width)
    if form.keeps_activation:
        total += share_exchanges(Cost(), _ACTIVATIONS[model.activation].of(hidden))
    if form.ends_in_relu:
        total += share_exchanges(Cost(), RELU.of(width))
    return total


MEMORY_ERROR = 0.25
"""Memory was within this share of the measured peak (`mpcvit bench forecast`).
"""

# Of a lowered layer, in numbers sent: for each token and channel of the residual stream (norms,
# inputs of products, queries and values), for each hidden number (GeLU and the product after it).
_PER_CHANNEL, _PER_HIDDEN = 20, 9
# Of a lowered layer, for each score: numbers sent; and exchanges. Others are taken as softmax.
LOWERED_KINDS = {
    SOFTMAX: (12, 39),
    RELU_SOFTMAX: (8, 35),
    LINFORMER: (7, 36),
    QUAD2: (1, 30),
    THE_X: (21, 47),
    SCALING: (0, 18),
}
_AROUND_EXCHANGES = 40  # embedding, head, and opening the class
_LAST_LAYER = 0.3  # whose other tokens nobody reads
_LOWERED_RING_BYTES = 16

# Peaks of a model owner that rehearses, because the program carries no script for the dealer.
_PROCESS_BYTES = 400e6  # Python with JAX and SPU, before any weight
_MATRIX_COPIES = 11  # of the largest matrix of weights, while a product is computed
_ARRAY_COPIES = 38  # of the largest array, while a function of it is computed
_HELD_SHARE = {True: 0.84, False: 1.3}  # lowered or not: dealt material, of the bytes sent

_WORKING_SHARE = 0.2  # without a dealer nothing is held: arrays alone

_S_PER_BYTE = {True: 13e-9, False: 15e-9}
_S_PER_PRODUCT = {True: 2e-9, False: 0.5e-9}  # multiply-adds, in the 128-bit and the 64-bit ring


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A forecast for a batch of images, without the set-up."""

    form: str  # "plain" or "lowered"
    exchanges: int
    sent_bytes: int
    compute_s: float
    seconds: float  # computing included
    memory_bytes: int  # of the busier party, the model owner


def forecast(
    model: ModelConfig,
    architecture: Architecture,
    *,
    lowered: bool,
    dealer: bool = True,
    network: NetworkLink = WAN,
    batch_size: int = 1,
) -> Forecast:
    """Return what a batch takes under SEMI2K, with a dealer or with the first party as one."""
    require_plain(model, architecture, "the forecast")
    cost = _lowered(model, architecture, batch_size) if lowered else None
    if cost is None:
        cost = estimate(model).price(architecture).times(batch_size)
    ring_bytes = _LOWERED_RING_BYTES if lowered else 8
    compute_s = cost.sent_bytes * _S_PER_BYTE[lowered]
    compute_s += batch_size * _products(model, lowered) * _S_PER_PRODUCT[lowered]
    memory = _PROCESS_BYTES + ring_bytes * _copies(model, batch_size)
    memory += cost.sent_bytes * (_HELD_SHARE[lowered] if dealer else _WORKING_SHARE)
    on_the_way = network.seconds(exchanges=cost.exchanges, sent_bytes=cost.sent_bytes)
    return Forecast(
        form="lowered" if lowered else "plain",
        exchanges=round(cost.exchanges),
        sent_bytes=round(cost.sent_bytes),
        compute_s=compute_s,
        seconds=on_the_way + compute_s,
        memory_bytes=round(memory),
    )


def forecast_for(
    model: ModelConfig,
    architecture: Architecture,
    profile: Profile,
    *,
    lowered: bool,
    batch_size: int,
) -> Forecast | None:
    """Return the forecast for a profile, or None where there is no model of its costs."""
    if not profile.protocol.has_forecast:
        return None
    try:
        return forecast(
            model,
            architecture,
            lowered=lowered,
            dealer=profile.dealer is Dealer.THIRD_PARTY,
            network=profile.network,
            batch_size=batch_size,
        )
    except UserError:
        return None


def _lowered(model: ModelConfig, architecture: Architecture, batch_size: int) -> Cost:
    """Return exchanges and bytes of a lowered network: weights once, activations per image."""
    numbers, exchanges = 0.0, float(_AROUND_EXCHANGES)
    forms = forms_of(model, architecture)
    for index, (layer, form) in enumerate(zip(architecture.layers, forms, strict=True)):
        share = 1.0 if index + 1 < model.depth else _LAST_LAYER
        kinds = [kinds_of(choice) for choice in layer.heads]
        per_score = sum(max(_kind(kind)[0] for kind in own) for own in kinds)
        tokens = form.tokens
        activations = tokens * (_PER_CHANNEL * model.width + _PER_HIDDEN * model.hidden)
        numbers += share * batch_size * (activations + per_score * tokens * tokens)
        exchanges += max(_kind(kind)[1] for own in kinds for kind in own)
    patch_values = model.patch_size**2 * model.channels
    numbers += batch_size * model.patches * patch_values + _weights(model)
    return Cost(exchanges=exchanges, sent_bytes=_LOWERED_RING_BYTES * numbers)


def _kind(kind: Kind) -> tuple[int, int]:
    return LOWERED_KINDS.get(kind, LOWERED_KINDS[SOFTMAX])


def _weights(model: ModelConfig) -> int:
    """Return how many weights the matrices of a network have."""
    layer = 4 * model.width**2 + 2 * model.width * model.hidden
    patch = model.patch_size**2 * model.channels * model.width
    return model.depth * layer + patch + model.width * model.classes


def _products(model: ModelConfig, lowered: bool) -> float:
    """Return the multiply-adds of one image."""
    depth = model.depth - 1 + (_LAST_LAYER if lowered else 1)
    layer = 4 * model.width**2 + 2 * model.width * model.hidden + 2 * model.tokens * model.width
    return depth * model.tokens * layer


def _copies(model: ModelConfig, batch_size: int) -> int:
    """Return how many numbers the copies of the largest matrix and array have."""
    matrix = model.width * max(model.hidden, 3 * model.width)
    array = model.tokens * max(model.hidden, model.heads * model.tokens)
    return _MATRIX_COPIES * matrix + _ARRAY_COPIES * array * batch_size

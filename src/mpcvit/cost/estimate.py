"""A latency table modelled from counts per operation, with nothing run.

`kinds/costs.py` says what is counted, and under which protocol.
"""

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import Activation, ModelConfig, NormForm
from mpcvit.artifacts.latency import WAN, LatencyTable, LayerCosts
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.artifacts.resolve import require_plain
from mpcvit.codec import encode
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
from mpcvit.kinds.table import KINDS

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

"""Exact rewrites of weights: everything that is linear and known goes into its neighbour.

Gains and biases of norms, 1 / sqrt(head_dim) and 1 / n move into the linears that
read them. If all norms are layer norms, tokens are centred where they are written, by
`C = I - 11'/width` on the writers' columns: then a norm finds the mean to be zero
and needs none. Where norms are constants, the residual is kept in units of its own,
so that their gains need no product. All of it in float64.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm, kinds_of
from mpcvit.artifacts.config import BlockForm, ModelConfig
from mpcvit.artifacts.forms import Activation, LayerForm, NormForm
from mpcvit.artifacts.resolve import forms_of, head_norm_of, is_centred
from mpcvit.attention.kind_math import math_of
from mpcvit.lowering.attention import (
    NUMBERS_PER_EXCHANGE,
    PRODUCTS_PER_EXCHANGE,
    folded_scale,
)
from mpcvit.model.checkpoint import Parameters

Weights = dict[str, Any]
_NORMS = ("norm1", "norm2")
_LEAST_GAIN = 1e-4  # of a kind, in a head that has rows of other kinds too
_LEAST_UNIT = 1e-3  # of the median over channels
_LARGEST_SQUARE = 64.0  # what completing a square may add and take away again


@dataclass(frozen=True, kw_only=True)
class Units:
    """The units of the residual around a block: tokens are `unit` times what is kept of them.

    `before` holds up to the second norm, and `after` from there on. They are `tied` if
    the gain of that norm leads from one to the other, so that nothing is multiplied.
    """

    before: np.ndarray
    after: np.ndarray
    tied: bool


def fold(config: ModelConfig, architecture: Architecture, parameters: Parameters) -> Weights:
    """Return the weights of a lowered network, by stage."""
    exact, centring = _fixed_norms(config, _float64(parameters)), _centring(config, architecture)
    units, forms = _residual_units(config, architecture, exact), forms_of(config, architecture)
    weights: Weights = {"embed": _embed(config, exact["embed"], centring, units[0].before)}
    for index, (layer, form, unit) in enumerate(
        zip(architecture.layers, forms, units, strict=True)
    ):
        own = exact[f"blocks_{index}"]
        weights[f"blocks_{index}"] = {
            **_attention(config, layer, form, own, unit.before, centring),
            "mlp": _mlp(config, layer, form, own, unit, centring),
            **{name: own[name]["clipped"] for name in _NORMS if "clipped" in own[name]},
        }
    weights["head"] = _after_norm(exact["norm"], exact["head"], units[-1].after)
    if "clipped" in exact["norm"]:
        weights["head"]["norm"] = exact["norm"]["clipped"]
    _merge(config, architecture, weights)
    return _float32(weights)


def mlp_forms(layer: LayerArchitecture) -> frozenset[MlpForm]:
    """Return the distinct functions of an MLP."""
    forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,)
    return frozenset(form.with_fused_linears for form in forms)


def reads_true_units(config: ModelConfig, norm: NormForm) -> bool:
    """Return whether a norm is more than a gain and a bias: a layer norm, or one that clips."""
    return norm is NormForm.LAYER or (norm is NormForm.BATCH and config.clip > 0)


def _centring(config: ModelConfig, architecture: Architecture) -> np.ndarray:
    """C, or nothing where norms see to the mean."""
    identity = np.eye(config.width)
    return identity - 1 / config.width if is_centred(config, architecture) else identity


def _fixed_norms(config: ModelConfig, exact: Any) -> Any:
    """Return the tree with batch norms as a scale and a bias.

    One that clips multiplies and adds itself, and leaves nothing to its readers.
    """
    if not isinstance(exact, dict):
        return exact
    if "variance" not in exact:
        return {name: _fixed_norms(config, branch) for name, branch in exact.items()}
    gain = exact["scale"] / np.sqrt(exact["variance"] + config.norm_eps)
    shift = exact["bias"] - exact["mean"] * gain
    if config.clip:
        clipped = {"gain": gain, "bias": shift}
        return {"scale": np.ones_like(gain), "bias": np.zeros_like(gain), "clipped": clipped}
    return {"scale": gain, "bias": shift}


def _residual_units(config: ModelConfig, architecture: Architecture, exact: Any) -> list[Units]:
    """Choose units of the residual so that few gains are multiplied with.

    In the lite form, the second norm's output is the residual: its gain is a change of
    units. A layer norm reads true units, and so does what follows a ReLU. Of the units
    in between, those before a true one are fixed by it, and the last by those before.
    A gain near zero is multiplied with, because nothing can be divided by it.
    """
    depth, ones = config.depth, np.ones(config.width)
    if config.block is not BlockForm.LITE:
        return [Units(before=ones, after=ones, tied=False)] * depth
    gains = [exact[f"blocks_{index}"]["norm2"]["scale"] for index in range(depth)]
    units: list[np.ndarray | None] = [None] * (depth + 1)
    for index, form in enumerate(forms_of(config, architecture)):
        if any(reads_true_units(config, norm) for norm in (form.norm1, form.norm2)):
            units[index] = ones
        if MlpForm.FUSED_RELU in mlp_forms(architecture.layers[index]):
            units[index + 1] = ones
    if reads_true_units(config, head_norm_of(config, architecture)):
        units[depth] = ones
    tied = [False] * depth
    for index in reversed(range(depth)):
        later = units[index + 1]
        if units[index] is None and later is not None and _divides(gains[index]):
            earlier = later / gains[index]
            if _divides(earlier):
                units[index], tied[index] = earlier, True
    first = ones if units[0] is None else units[0]
    chosen = [first]
    for index in range(depth):
        later = units[index + 1]
        if later is None and _divides(passed := chosen[index] * gains[index]):
            later, tied[index] = passed, True
        chosen.append(ones if later is None else later)
    return [
        Units(before=chosen[index], after=chosen[index + 1], tied=tied[index])
        for index in range(depth)
    ]


def _divides(gain: np.ndarray) -> bool:
    """Return whether dividing by a gain keeps its channels of similar size."""
    size = np.abs(gain)
    return bool(size.min() > 0 and size.min() >= _LEAST_UNIT * np.median(size))


def _embed(config: ModelConfig, own: Any, centring: np.ndarray, unit: np.ndarray) -> Weights:
    offset = own["position"].copy()
    if config.has_class_token:
        offset[0] += own["class_token"]
    offset[config.leading_tokens :] += own["patch"]["bias"]
    if not config.embed_norm:
        writing = centring / unit
        return {"kernel": own["patch"]["kernel"] @ writing, "offset": offset @ writing}
    return {
        "kernel": own["patch"]["kernel"] @ centring,
        "offset": offset @ centring,
        "gain": own["norm"]["scale"] / unit,
        "bias": own["norm"]["bias"] @ centring / unit,
    }


def _after_norm(norm: Any, linear: Any, unit: np.ndarray) -> Weights:
    """Fold a norm's gain and bias, and the units of what it reads, into the linear after it.

    The linear may read several tokens side by side.
    """
    kernel = linear["kernel"]
    times = len(kernel) // len(unit)
    gain, shift = np.tile(norm["scale"] * unit, times), np.tile(norm["bias"], times)
    return {"kernel": gain[:, None] * kernel, "bias": shift @ kernel + linear.get("bias", 0.0)}


def _attention(
    config: ModelConfig,
    layer: LayerArchitecture,
    form: LayerForm,
    own: Any,
    unit: np.ndarray,
    centring: np.ndarray,
) -> dict[str, Weights]:
    """Move gains of kinds, and every constant factor of scores, into the weights around.

    A kind with a gain does not see the scale of v. So if a head has rows of other
    kinds too, its values are divided by what its outputs are multiplied by.
    """
    head_dim, attention = config.head_dim, own["attention"]
    scale = np.array([folded_scale(config, choice, form.tokens) for choice in layer.heads])
    gain, share = np.ones(config.heads), np.ones(config.heads)
    for head, kinds in enumerate(map(kinds_of, layer.heads)):
        gains = [gain_of for kind in kinds if (gain_of := math_of(kind).gain) is not None]
        assert len(gains) <= 1, "two kinds of a head want to scale its values"
        if gains:
            gain[head] = gains[0](attention, head)
            if len(kinds) > 1:
                gain[head] = max(gain[head], _LEAST_GAIN)
                share[head] = 1 / gain[head]
    scores = np.repeat(np.concatenate([scale, np.ones(config.heads)]), config.qk_dim)
    factors, proj = np.concatenate([scores, np.repeat(share, head_dim)]), attention["proj"]
    folded = _after_norm(own["norm1"], attention["qkv"], unit)
    weights = {
        "qkv": {name: value * factors for name, value in folded.items()},
        "proj": {
            "kernel": np.repeat(gain, head_dim)[:, None] * proj["kernel"] @ centring / unit,
            "bias": proj["bias"] @ centring / unit,
        },
    }
    if learned := _learned(config, layer, attention, form.tokens):
        weights["learned"] = learned
    return weights


def _learned(config: ModelConfig, layer: LayerArchitecture, attention: Any, tokens: int) -> Weights:
    """Return the parameters that kinds learn, as their lowered forms read them."""
    learned: Weights = {}
    for kind in sorted(layer.kinds, key=str):
        if (own := math_of(kind).fold) is not None:
            learned |= own(config, attention, tokens)
    return learned


def _mlp(
    config: ModelConfig,
    layer: LayerArchitecture,
    form: LayerForm,
    own: Any,
    units: Units,
    centring: np.ndarray,
) -> dict[str, Weights]:
    """Fold an MLP. In the lite form the norm's output is residual too, times the norm's gain.

    A product of matrices could do that on its way, but would take longer. Where units
    are tied, nothing is multiplied.
    """
    up, down, norm = own["mlp"]["up"], own["mlp"]["down"], own["norm2"]
    lite = config.block is BlockForm.LITE
    gain, shift = np.diag(norm["scale"] * units.before), norm["bias"]
    weights: dict[str, Weights] = {}
    for mlp_form in mlp_forms(layer):
        if mlp_form is MlpForm.ACTIVATED:
            squared, bias = up, down["bias"] + (shift if lite else 0.0)
            written = {"kernel": down["kernel"], "bias": bias}
            written = {name: value @ centring / units.after for name, value in written.items()}
            if form.activation is Activation.QUADRATIC:
                squared, written = _complete_squares(up, written, own["mlp"]["quadratic"])
            weights["up"] = _after_norm(norm, squared, units.before)
            weights["down"] = written
            if lite and not units.tied and "clipped" not in norm:
                weights["residual"] = {"gain": norm["scale"] * units.before / units.after}
            continue
        both = {
            "kernel": up["kernel"] @ down["kernel"],
            "bias": up["bias"] @ down["kernel"] + down["bias"],
        }
        fused = _after_norm(norm, both, units.before)
        if mlp_form is MlpForm.FUSED:
            if lite:
                fused = {"kernel": fused["kernel"] + gain, "bias": fused["bias"] + shift}
            fused = {name: value @ centring / units.after for name, value in fused.items()}
        elif lite:
            fused = {
                "kernel": np.concatenate([fused["kernel"], gain @ centring], axis=1),
                "bias": np.concatenate([fused["bias"], shift @ centring]),
            }
        weights[mlp_form.value] = fused
    return weights


def _complete_squares(up: Any, down: Any, quadratic: Any) -> tuple[Weights, Weights]:
    """Return linears between which the learnt parabola is a plain square.

        a x^2 + b x + c = sign(a) (sqrt|a| (x + b / 2a))^2 + c - b^2 / 4a

    If b^2 / 4a is large, it would be added only to be taken away. Then b x takes its own
    way: `up` has further columns, and what they give is added to what `down` writes.
    """
    square, slope = quadratic["square"], quadratic["slope"]
    far = slope**2 > 4 * _LARGEST_SQUARE * np.abs(square)
    shift = np.where(far, 0.0, slope / 2) / np.where(far | (square == 0), 1.0, square)
    root, constant = np.sqrt(np.abs(square)), quadratic["constant"] - square * shift**2
    kernel, bias = up["kernel"] * root, (up["bias"] + shift) * root
    if far.any():
        straight = (slope[:, None] * down["kernel"])[far]
        kernel = np.concatenate([kernel, up["kernel"][:, far] @ straight], axis=1)
        bias = np.concatenate([bias, up["bias"][far] @ straight])
    written = {
        "kernel": np.sign(square)[:, None] * down["kernel"],
        "bias": down["bias"] + constant @ down["kernel"],
    }
    return {"kernel": kernel, "bias": bias}, written


def _merge(config: ModelConfig, architecture: Architecture, weights: Weights) -> None:
    """Make one product of two linears between which a norm is only a gain and a bias.

    The first one also gives what the second one would make of its output. So the residual
    stands beside what it reads.
    """
    forms = forms_of(config, architecture)
    blocks = [weights[f"blocks_{index}"] for index in range(config.depth)]
    if not reads_true_units(config, forms[0].norm1) and not config.embed_norm:
        _merge_first(config, weights["embed"], blocks[0])
    for here, form, before, after in zip(forms, forms[1:], blocks, blocks[1:], strict=False):
        if not reads_true_units(config, form.norm1):
            _merge_next(here.tokens, before["mlp"], after)
    is_single = config.pooled_width == config.width
    if not reads_true_units(config, head_norm_of(config, architecture)) and is_single:
        _merge_last(blocks[-1]["mlp"], weights["head"])
    for form, block in zip(forms, blocks, strict=True):
        if not reads_true_units(config, form.norm2):
            _merge_hidden(form.tokens, block)


def _merge_first(config: ModelConfig, embed: Weights, block: Weights) -> None:
    """Let the embedding give queries, keys and values beside the tokens."""
    qkv, (pixels, width) = block["qkv"], embed["kernel"].shape
    more = (pixels - width) * qkv["kernel"].shape[1] - config.tokens * width
    if more > NUMBERS_PER_EXCHANGE:
        return
    del block["qkv"]
    kernel = embed["kernel"] @ qkv["kernel"]
    offset = embed["offset"] @ qkv["kernel"] + qkv["bias"]
    embed["kernel"] = np.concatenate([embed["kernel"], kernel], axis=1)
    embed["offset"] = np.concatenate([embed["offset"], offset], axis=1)


def _merge_next(tokens: int, mlp: Weights, block: Weights) -> None:
    """Let an MLP give the next block's queries, keys and values beside the tokens."""
    if _has_other_forms(mlp) or not _pays(tokens, mlp["down"], block["qkv"]):
        return
    mlp["down"] = _two_linears(mlp["down"], block.pop("qkv"))


def _merge_hidden(tokens: int, block: Weights) -> None:
    """Let attention's last linear give the MLP's hidden values beside the tokens."""
    mlp = block["mlp"]
    if _has_other_forms(mlp) or not _pays(tokens, block["proj"], mlp["up"]):
        return
    block["proj"] = _two_linears(block["proj"], mlp.pop("up"))


def _merge_last(mlp: Weights, head: Weights) -> None:
    """Let the head read the last hidden values beside the residual, in one product."""
    if _has_other_forms(mlp) or "residual" in mlp:
        return
    hidden, width = mlp["down"]["kernel"].shape
    if hidden * (head["kernel"].shape[1] - width) > NUMBERS_PER_EXCHANGE:
        return
    down = mlp.pop("down")
    head["bias"] = head["bias"] + down["bias"] @ head["kernel"]
    head["kernel"] = np.concatenate([head["kernel"], down["kernel"] @ head["kernel"]])


def _has_other_forms(mlp: Weights) -> bool:
    """Return whether tokens of a layer have an MLP of fused linears."""
    return not set(mlp) <= {"up", "down", "residual"}


def _pays(tokens: int, first: Weights, second: Weights) -> bool:
    """Return whether an exchange is worth the larger kernel of two linears in one.

    The kernel is opened, unless its mask is reused, and multiplied with every token.
    """
    (read, width), (_, given) = first["kernel"].shape, second["kernel"].shape
    more = read * given + width**2  # numbers than two kernels have
    return more <= NUMBERS_PER_EXCHANGE and tokens * more <= PRODUCTS_PER_EXCHANGE


def _two_linears(first: Weights, second: Weights) -> Weights:
    """Return a linear that gives x + first(y), and second of that, from the residual x and y."""
    kernel = np.concatenate([np.eye(first["kernel"].shape[1]), first["kernel"]])
    return {
        "kernel": np.concatenate([kernel, kernel @ second["kernel"]], axis=1),
        "bias": np.concatenate([first["bias"], first["bias"] @ second["kernel"] + second["bias"]]),
    }


def _float64(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _float64(branch) for name, branch in tree.items()}
    return np.asarray(tree, np.float64)


def _float32(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _float32(branch) for name, branch in tree.items()}
    return np.ascontiguousarray(tree, np.float32)

"""Resolve: what each layer is, by its architecture's choices or else by the model's configuration.

This is the one place that knows how many tokens a layer has.
"""

from dataclasses import replace

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture
from mpcvit.artifacts.choices import Choice, LayerMixture, Mixture, SearchConfig
from mpcvit.artifacts.config import ModelConfig, Pooling
from mpcvit.artifacts.forms import Activation, FormChoice, LayerForm, NormForm
from mpcvit.errors import UserError

MOST_PARAMETERS = 2_000_000_000  # ViT-Giant has 1.8 billion
_MOST = {
    **{"image_size": 2048, "channels": 16, "depth": 256, "heads": 256, "width": 16_384},
    **{"classes": 100_000, "tokens": 65_536},
}


def require_reasonable(model: ModelConfig) -> None:
    """Refuse sizes that no model has, before anything of these sizes is made."""
    for name, most in _MOST.items():
        if not 0 < getattr(model, name) <= most:
            raise UserError(f"its {name} of {getattr(model, name)} is not within 1 and {most}")
    patch_values = model.patch_size**2 * model.channels
    per_layer = model.width**2 * (4 + 2 * model.mlp_ratio)
    around = model.width * (patch_values + model.tokens + model.classes)
    if model.depth * per_layer + around > MOST_PARAMETERS:
        raise UserError(f"it has more than {MOST_PARAMETERS:,} parameters")


def forms_of(model: ModelConfig, architecture: Architecture | Mixture) -> tuple[LayerForm, ...]:
    """Return the form of each layer."""
    forms, tokens = [], model.tokens
    for index, layer in enumerate(architecture.layers):
        wanted = model.layer_tokens[index] if model.layer_tokens else tokens
        chosen = layer.form if isinstance(layer, LayerArchitecture) else FormChoice()
        tokens = chosen.tokens or min(wanted, tokens)
        forms.append(
            LayerForm(
                tokens=tokens,
                norm1=chosen.norm1 or _norm_at(model, f"{index}.norm1"),
                norm2=chosen.norm2 or _norm_at(model, f"{index}.norm2"),
                activation=chosen.activation or model.activation,
            )
        )
    return tuple(forms)


def queries_of(config: ModelConfig, architecture: Architecture, index: int) -> int:
    """Return how many tokens of a block something later reads: of the last, those of the head."""
    if index == config.depth - 1:
        read = {Pooling.CLASS: 1, Pooling.CLASS_EXTRA: 2}
        if config.pooling in read:
            return read[config.pooling]
    return forms_of(config, architecture)[index].tokens


def made_explicit(model: ModelConfig, architecture: Architecture) -> Architecture:
    """Return an architecture that leaves no form to the model's configuration."""
    layers = (
        replace(layer, form=FormChoice(**vars(form)))
        for layer, form in zip(architecture.layers, forms_of(model, architecture), strict=True)
    )
    return Architecture(layers=tuple(layers), norm=head_norm_of(model, architecture))


def mixture_of(model: ModelConfig, search: SearchConfig) -> Mixture:
    """Return what every layer computes while a search decides."""
    layer = LayerMixture(
        kept=search.kept,
        replacement=search.replacement,
        granularity=search.granularity,
        activation=search.activation,
        norm=Choice.NORM in search.choices,
        quadratic=Choice.ACTIVATION in search.choices,
        token_counts=fewer_tokens(model, search),
    )
    return Mixture(layers=(layer,) * model.depth)


def fewer_tokens(model: ModelConfig, search: SearchConfig) -> tuple[int, ...]:
    """Return the counts of tokens that a search may merge to, the largest first.

    Unless they are given, these are what merging pairs of neighbours once and twice leaves.
    """
    if Choice.TOKENS not in search.choices:
        return ()
    counts = range(model.tokens - 1, 0, -1)
    possible = tuple(count for count in counts if model.grid(count) is not None)
    return search.token_counts or possible[:2]


def head_norm_of(model: ModelConfig, architecture: Architecture | Mixture) -> NormForm:
    """Return the form of the norm after the last block."""
    chosen = architecture.norm if isinstance(architecture, Architecture) else None
    return chosen or _norm_at(model, "norm")


def is_centred(model: ModelConfig, architecture: Architecture | Mixture) -> bool:
    """Return whether tokens may have a mean of zero: only layer norms read them."""
    norms = {head_norm_of(model, architecture)}
    for form in forms_of(model, architecture):
        norms |= {form.norm1, form.norm2}
    return norms == {NormForm.LAYER}


def _norm_at(model: ModelConfig, place: str) -> NormForm:
    return NormForm.LAYER if place in model.layer_norms else model.norm


def validate(model: ModelConfig, architecture: Architecture | Mixture) -> None:
    """Refuse an architecture that was made for a model of another shape."""
    architecture.require_depth(model.depth)
    counts = [form.tokens for form in forms_of(model, architecture)]
    for index, (before, count) in enumerate(zip((model.tokens, *counts), counts, strict=False)):
        if reason := model.refuse_merge(before, count):
            raise UserError(f"layer {index} of the architecture {reason}")
    if isinstance(architecture, Architecture):  # a mixture fits any other shape
        architecture.validate(heads=model.heads, tokens=counts)


def require_plain(model: ModelConfig, architecture: Architecture | Mixture, who: str) -> None:
    """Refuse blocks whose prices are not known yet, by the first one's name."""
    for index, form in enumerate(forms_of(model, architecture)):
        for name, norm in (("norm1", form.norm1), ("norm2", form.norm2)):
            if norm is NormForm.BATCH:
                raise UserError(
                    f"{who} takes no batch norm yet, but {name} of layer {index} is one"
                )
        if form.activation is Activation.QUADRATIC:
            raise UserError(f"{who} takes no learnt quadratic yet, but layer {index} has one")
        if form.tokens != model.tokens:
            raise UserError(f"{who} merges no tokens yet, but layer {index} has {form.tokens}")
    if head_norm_of(model, architecture) is NormForm.BATCH:
        raise UserError(f"{who} takes no batch norm yet, but the head's norm is one")
    if model.qk_dim != model.head_dim:
        raise UserError(f"{who} takes no model.head_dim_qk yet, but it is {model.head_dim_qk}")

"""Resolve: what each layer is, by its architecture's choices or else by the model's configuration.

This is the one place that knows how many tokens a layer has.
"""

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, Mixture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.forms import Activation, FormChoice, LayerForm, NormForm
from mpcvit.errors import UserError


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


def head_norm_of(model: ModelConfig, architecture: Architecture | Mixture) -> NormForm:
    """Return the form of the norm after the last block."""
    chosen = architecture.norm if isinstance(architecture, Architecture) else None
    return chosen or _norm_at(model, "norm")


def _norm_at(model: ModelConfig, place: str) -> NormForm:
    return NormForm.LAYER if place in model.layer_norms else model.norm


def validate(model: ModelConfig, architecture: Architecture | Mixture) -> None:
    """Refuse an architecture that was made for a model of another shape."""
    architecture.require_depth(model.depth)
    counts = [form.tokens for form in forms_of(model, architecture)]
    for index, (before, count) in enumerate(zip((model.tokens, *counts), counts, strict=False)):
        if reason := model.refuse_merge(before, count):
            raise UserError(f"layer {index} of the architecture {reason}")
    architecture.validate(heads=model.heads, tokens=counts)


def require_plain(model: ModelConfig, architecture: Architecture | Mixture, who: str) -> None:
    """Refuse blocks whose prices are not known yet, by the first one's name."""
    for index, form in enumerate(forms_of(model, architecture)):
        for name, norm in (("norm1", form.norm1), ("norm2", form.norm2)):
            if norm is NormForm.BATCH:
                raise UserError(f"{who} takes no batch norm yet, but {index}.{name} is one")
        if form.activation is Activation.QUADRATIC:
            raise UserError(f"{who} takes no learnt quadratic yet, but layer {index} has one")
        if form.tokens != model.tokens:
            raise UserError(f"{who} merges no tokens yet, but layer {index} has {form.tokens}")
    if head_norm_of(model, architecture) is NormForm.BATCH:
        raise UserError(f"{who} takes no batch norm yet, but the head's norm is one")
    if model.qk_dim != model.head_dim:
        raise UserError(f"{who} takes no model.head_dim_qk yet, but it is {model.head_dim_qk}")

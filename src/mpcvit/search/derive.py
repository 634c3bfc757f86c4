"""From what a search found to an architecture: by ratio, by budget, by threshold.

One search serves every ratio and every budget; nothing is trained here. Units
are what one alpha stands for: a layer, a head or a row.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpcvit.artifacts.architecture import (
    Architecture,
    LayerArchitecture,
    MlpChoice,
    MlpForm,
)
from mpcvit.artifacts.choices import Choice, DeriveConfig
from mpcvit.artifacts.config import BlockForm
from mpcvit.artifacts.forms import FormChoice, NormForm
from mpcvit.artifacts.latency import Cost
from mpcvit.artifacts.resolve import made_explicit
from mpcvit.artifacts.search import SearchResult
from mpcvit.errors import UserError
from mpcvit.search.options import (
    HeadOption,
    Option,
    Unit,
    architecture_of,
    choose,
    heads_of,
    layer_options,
    norm_options,
    of_layer,
    ranked,
    units_of,
)

# As in the paper's evaluation of MPCViT+.
DEFAULT_GELU_THRESHOLD = 0.75


@dataclass(frozen=True, kw_only=True)
class Derived:
    """An architecture, with how it was chosen."""

    architecture: Architecture
    kept: int
    units: int
    kept_alpha: float
    importance: float  # of all that was kept: alphas, and shares of norms, activations and tokens
    cost: Cost
    seconds: float
    tied_units: tuple[str, ...]  # dropped although their alpha equals one that was kept


@dataclass(frozen=True, kw_only=True)
class MlpRule:
    """Tokens whose beta is at most `threshold` take `form`; the others keep GeLU."""

    threshold: float = DEFAULT_GELU_THRESHOLD
    form: MlpForm = MlpForm.FUSED_RELU

    def __post_init__(self) -> None:
        if not 0 <= self.threshold <= 1:
            raise UserError(f"a GeLU threshold must lie in [0, 1], not {self.threshold}")
        if self.form.keeps_activation:
            raise UserError(f"tokens without GeLU cannot take the form {self.form.value!r}")


def derive_by_ratio(
    result: SearchResult,
    ratio: float,
    *,
    per_layer: bool = False,
    mlp: MlpRule | None = None,
) -> Derived:
    """Keep the expensive kind in a share of all units, those of the largest alpha.

    The count is rounded up. Equal alphas keep the earlier layer, then head,
    then row. `per_layer` is the paper's baseline: the same share in every
    layer, as nearly as whole units allow.
    """
    if not 0 <= ratio <= 1:
        raise UserError(f"a ratio must lie in [0, 1], not {ratio}")
    if not result.search.is_the_papers:
        raise UserError(
            "a ratio counts heads alone, but this search chose more than attention; "
            "give --latency-budget"
        )
    alpha = units_of(result)
    count = _count(ratio, len(alpha))
    units = ranked(alpha)
    kept = _spread(alpha, count, result.model.depth) if per_layer else units[:count]
    tied_units = () if per_layer else _tied_units(alpha, units, count)
    layers = tuple(
        LayerArchitecture(heads=heads_of(result, layer, frozenset(kept)), mlp=form)
        for layer, form in enumerate(_mlp_choices(result, mlp))
    )
    return _finish(result, alpha, frozenset(kept), Architecture(layers=layers), tied_units)


def derive_by_budget(
    result: SearchResult,
    budget_s: float,
    *,
    mlp: MlpRule | None = None,
    layer_norm_every: int = DeriveConfig.layer_norm_every,
) -> Derived:
    """Keep the largest total importance whose network takes at most `budget_s` seconds.

    Exactly: a layer keeps its heads of the largest alpha first. So it chooses how many, and
    where they are searched, its norms, its activation and its tokens. If norms are
    searched, the whole residual passes a layer norm once in `layer_norm_every` layers in a
    row, or in all if there are fewer; 0 asks for none.
    """
    alpha, table = units_of(result), result.latency
    if not result.search.is_the_papers:
        table.require_choices()
    options = layer_options(result, _mlp_choices(result, mlp))
    head = [HeadOption(norm, value) for norm, value in norm_options(result, None)]
    searched = Choice.NORM in result.search.choices
    bounded = result.model.block is BlockForm.LITE and searched and layer_norm_every > 0
    picks = choose(
        [
            *([own.option for own in layer] for layer in options),
            [
                Option(
                    seconds=table.seconds(table.rest),
                    value=own.value,
                    is_normed=own.norm is NormForm.LAYER,
                    bounds=True,  # nothing comes after it
                )
                for own in head
            ],
        ],
        budget_s,
        most_unbounded=min(layer_norm_every, result.model.depth) - 1 if bounded else None,
        refuse=lambda picks, least_s: UserError(
            f"no network fits {budget_s:g} s: the cheapest, "
            f"{_describe(architecture_of(options, head, picks))}, takes {least_s:.3f} s"
        ),
    )
    kept, tied_units = set[Unit](), list[str]()
    for layer, pick in zip(options, picks, strict=False):
        kept.update(layer[pick].kept)
        units = ranked(of_layer(alpha, layer[pick].index))
        tied_units += _tied_units(alpha, units, len(layer[pick].kept))
    total = sum(own[pick].option.value for own, pick in zip(options, picks, strict=False))
    return _finish(
        result,
        alpha,
        frozenset(kept),
        architecture_of(options, head, picks),
        tuple(tied_units),
        total + head[picks[-1]].value,
    )


def _count(ratio: float, units: int) -> int:
    """Round up, yet let 0.7 of 10 be 7 although 0.7 * 10 is a little more.

    >>> _count(0.7, 10), _count(0.3, 28), _count(0.0, 5)
    (7, 9, 0)
    """
    return math.ceil(round(ratio * units, 9))


def _spread(alpha: dict[Unit, float], count: int, depth: int) -> list[Unit]:
    """Return the same number of units per layer; the odd ones go to the largest alphas."""
    whole, odd = divmod(count, depth)
    by_layer = [ranked(of_layer(alpha, layer)) for layer in range(depth)]
    even = [unit for units in by_layer for unit in units[:whole]]
    next_best = {units[whole]: alpha[units[whole]] for units in by_layer if whole < len(units)}
    return even + ranked(next_best)[:odd]


def _tied_units(alpha: dict[Unit, float], ranked: Sequence[Unit], count: int) -> tuple[str, ...]:
    if not 0 < count < len(ranked):
        return ()
    last = alpha[ranked[count - 1]]
    return tuple(str(unit) for unit in ranked[count:] if alpha[unit] == last)


def _finish(
    result: SearchResult,
    alpha: dict[Unit, float],
    kept: frozenset[Unit],
    architecture: Architecture,
    tied_units: tuple[str, ...],
    importance: float | None = None,
) -> Derived:
    """Price an architecture; one of a search of attention leaves all else to the model."""
    kept_alpha = sum(alpha[unit] for unit in kept)
    cost = result.latency.price(made_explicit(result.model, architecture))
    if result.search.is_the_papers:
        layers = (replace(layer, form=FormChoice()) for layer in architecture.layers)
        architecture = Architecture(layers=tuple(layers))
    return Derived(
        architecture=architecture,
        kept=len(kept),
        units=len(alpha),
        kept_alpha=kept_alpha,
        importance=kept_alpha if importance is None else importance,
        cost=cost,
        seconds=result.latency.seconds(cost),
        tied_units=tied_units,
    )


def _mlp_choices(result: SearchResult, rule: MlpRule | None) -> list[MlpChoice]:
    """Return a form per MLP, or a form per token if its tokens differ."""
    if not result.beta or not result.search.is_the_papers:
        if rule is not None:
            raise UserError(
                "this search did not weigh GeLU, so it has no threshold; "
                "search with search.activation=token or layer"
            )
        return [MlpForm.ACTIVATED] * result.model.depth
    rule = rule or MlpRule()
    choices: list[MlpChoice] = []
    for beta in result.beta:
        forms = tuple(MlpForm.ACTIVATED if b > rule.threshold else rule.form for b in beta)
        choices.append(forms[0] if len(set(forms)) == 1 else forms)
    return choices


def _describe(architecture: Architecture) -> str:
    """Name an architecture whose heads are all of one kind, in a few words."""
    kinds = sorted({str(kind) for layer in architecture.layers for kind in layer.kinds})
    words = [f"{' and '.join(kinds)} in every head"]
    forms = {form for layer in architecture.layers for form in _forms(layer)}
    if forms != {MlpForm.ACTIVATED}:
        words.append("GeLU by its threshold")
    norms = [
        f"{index}.{name}"
        for index, layer in enumerate(architecture.layers)
        for name in ("norm1", "norm2")
        if getattr(layer.form, name) is NormForm.LAYER
    ]
    if len(norms) < 2 * len(architecture.layers):
        words.append(f"layer norms {', '.join(norms)}" if norms else "no layer norm")
        activations = {layer.form.activation for layer in architecture.layers}
        words.append("/".join(sorted(own.value for own in activations if own is not None)))
        words.append(f"{architecture.layers[-1].form.tokens} tokens")
    return " with ".join((words[0], ", ".join(words[1:]))) if words[1:] else words[0]


def _forms(layer: LayerArchitecture) -> set[MlpForm]:
    return set(layer.mlp) if isinstance(layer.mlp, tuple) else {layer.mlp}

"""Options: every way to make a layer, and which of them are worth most within a budget."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import NamedTuple

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpChoice
from mpcvit.artifacts.choices import Choice
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.latency import Cost
from mpcvit.artifacts.resolve import fewer_tokens, forms_of
from mpcvit.artifacts.search import SearchResult
from mpcvit.errors import UserError
from mpcvit.kinds.table import Kind


@dataclass(frozen=True, kw_only=True)
class Option:
    """A way to make one layer: its seconds, its value, and what it means for the other layers.

    `if_normed_s` is paid beside if a later norm is a layer norm, and `is_normed` says
    whether a norm of this layer is one. `bounds` says whether no value can run away in it,
    because the whole residual passes a layer norm. No layer has more `tokens` than the one
    before.
    """

    seconds: float
    value: float
    tokens: int = 0
    if_normed_s: float = 0.0
    is_normed: bool = False
    bounds: bool = False


_MOST_AT_FIRST = 1  # layers, before the first that bounds values


class _State(NamedTuple):
    """A state: what the choice of a layer depends on, of the layers after it."""

    tokens: int
    is_normed: bool
    unbounded: int  # layers in a row, from the next one on


class _Partial(NamedTuple):
    """The options of the last layers; seconds are whole nanoseconds."""

    cost: int
    value: float
    picks: tuple[int, ...]


_Fronts = dict[_State, list[_Partial]]


def choose(
    layers: Sequence[Sequence[Option]],
    budget_s: float,
    *,
    most_unbounded: int | None = None,
    refuse: Callable[[tuple[int, ...], float], UserError],
) -> tuple[int, ...]:
    """Return the option of each layer; at most `most_unbounded` in a row leave values unbounded.

    At most one comes before the first that bounds them. Values of a picture that is unlike all
    training images grow so fast that two would leave every range.

    Seconds are rounded up, so that what fits truly fits and sums that are equal compare
    so. Of equal values the cheapest is taken, and of equal costs the latest options of the
    earliest layers. `refuse` makes an error of the cheapest choice and its seconds.

    >>> options = [Option(seconds=s, value=v) for s, v in ((0, 0), (1, 2), (4, 3))]
    >>> choose([options] * 2, 5, refuse=lambda picks, least_s: UserError(""))
    (2, 1)
    """
    budget = math.floor(round(budget_s * 1e9, 3))
    fronts = _sweep(layers, most_unbounded, lambda states: [min(states)])
    cheapest = min(state for own in fronts.values() for state in own)
    if cheapest.cost > budget:
        raise refuse(cheapest.picks, cheapest.cost / 1e9)
    fronts = _sweep(layers, most_unbounded, _pareto, budget)
    best = (own[-1] for own in fronts.values())
    return min(best, key=lambda state: (-round(state.value, 12), state.cost, _late(state))).picks


def _sweep(
    layers: Sequence[Sequence[Option]],
    most_unbounded: int | None,
    thin: Callable[[list[_Partial]], list[_Partial]],
    budget: float = math.inf,
) -> _Fronts:
    spare = sum(min(map(_cost, options)) for options in layers)
    fronts: _Fronts = {_State(0, False, 0): [_Partial(0, 0.0, ())]}
    for options in reversed(layers):
        spare -= min(map(_cost, options))  # what the layers before take at least
        grown: _Fronts = {}
        for state, front in fronts.items():
            for pick, option in enumerate(options):
                counts = most_unbounded is not None and not option.bounds
                unbounded = state.unbounded + 1 if counts else 0
                if option.tokens < state.tokens or unbounded > (most_unbounded or 0):
                    continue
                is_normed = state.is_normed or option.is_normed
                after = _State(option.tokens, is_normed, unbounded)
                added = _cost(option) + (_ceil(option.if_normed_s) if state.is_normed else 0)
                grown.setdefault(after, []).extend(
                    _Partial(part.cost + added, part.value + option.value, (pick, *part.picks))
                    for part in front
                    if part.cost + added + spare <= budget
                )
        fronts = {state: thin(states) for state, states in grown.items() if states}
    return {state: front for state, front in fronts.items() if state.unbounded <= _MOST_AT_FIRST}


def _pareto(states: Iterable[_Partial]) -> list[_Partial]:
    """Return what is worth more than everything cheaper, the cheapest first."""
    front: list[_Partial] = []
    for state in sorted(states, key=lambda own: (own.cost, -own.value, _late(own))):
        if not front or state.value > front[-1].value + 1e-12:
            front.append(state)
    return front


def _late(state: _Partial) -> tuple[int, ...]:
    return tuple(-pick for pick in state.picks)


def _cost(option: Option) -> int:
    return _ceil(option.seconds)


def _ceil(seconds: float) -> int:
    return math.ceil(round(seconds * 1e9, 3))


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """The place that one alpha stands for; a number is 0 where all share the choice."""

    layer: int
    head: int
    row: int

    def __str__(self) -> str:
        return f"layer {self.layer} head {self.head} row {self.row}"


@dataclass(frozen=True, kw_only=True)
class LayerOption:
    """A layer with every choice made, and the heads that keep the expensive kind."""

    index: int
    kept: tuple[Unit, ...]
    architecture: LayerArchitecture
    option: Option


class HeadOption(NamedTuple):
    norm: NormForm
    value: float


def layer_options(
    result: SearchResult, mlp_choices: Sequence[MlpChoice]
) -> list[list[LayerOption]]:
    """Return every way to make each layer; what is not searched is as the model says."""
    alpha, search = units_of(result), result.search
    uniform = Architecture.uniform(search.kept, depth=result.model.depth, heads=result.model.heads)
    layers = []
    for index, own in enumerate(forms_of(result.model, uniform)):
        units = ranked(of_layer(alpha, index))
        values = list(accumulate((alpha[unit] for unit in units), initial=0.0))
        forms = [
            (FormChoice(norm1=norm1, norm2=norm2, activation=activation, tokens=tokens), value)
            for (tokens, worth), (norm1, first), (norm2, second), (activation, beta) in product(
                _token_options(result, index, own.tokens),
                norm_options(result, (index, 0)),
                norm_options(result, (index, 1)),
                _activation_options(result, index),
            )
            for value in (worth + first + second + beta,)
        ]
        layers.append(
            [
                _layer_option(
                    result,
                    index,
                    tuple(units[:count]),
                    mlp_choices[index],
                    form,
                    values[count] + value,
                )
                for form, value in forms
                for count in range(len(units) + 1)
            ]
        )
    return layers


def _layer_option(
    result: SearchResult,
    index: int,
    kept: tuple[Unit, ...],
    mlp: MlpChoice,
    form: FormChoice,
    value: float,
) -> LayerOption:
    table = result.latency
    layer = LayerArchitecture(heads=heads_of(result, index, frozenset(kept)), mlp=mlp, form=form)
    norms = table.layer_costs(index, form.tokens).norms
    is_normed = NormForm.LAYER in (form.norm1, form.norm2)
    beside = Cost()
    if norms is not None:
        beside = norms.gain if is_normed else beside
        beside += norms.head if index == result.model.depth - 1 else Cost()
    return LayerOption(
        index=index,
        kept=kept,
        architecture=layer,
        option=Option(
            seconds=table.seconds(table.price_layer(index, layer)),
            value=value,
            tokens=form.tokens or 0,
            if_normed_s=table.seconds(beside),
            is_normed=is_normed,
            bounds=form.norm2 is NormForm.LAYER,
        ),
    )


def norm_options(
    result: SearchResult, place: tuple[int, int] | None
) -> list[tuple[NormForm, float]]:
    """Return the forms of a norm with their values; no place is the norm before the head."""
    if not result.norms:
        return [(result.model.norm, 0.0)]
    share = result.norms[-1][0] if place is None else result.norms[place[0]][place[1]]
    return [(NormForm.BATCH, 0.0), (NormForm.LAYER, share)]


def _activation_options(result: SearchResult, layer: int) -> list[tuple[Activation, float]]:
    activation = result.model.activation
    if Choice.ACTIVATION not in result.search.choices:
        return [(activation, 0.0)]
    return [(Activation.QUADRATIC, 0.0), (activation, result.beta[layer][0])]


def _token_options(result: SearchResult, layer: int, tokens: int) -> list[tuple[int, float]]:
    """Return counts of tokens; each is worth the shares of all smaller counts."""
    if not result.tokens:
        return [(tokens, 0.0)]
    smaller = fewer_tokens(result.model, result.search)
    worth = accumulate(reversed(result.tokens[layer]), initial=0.0)
    return list(zip((*reversed(smaller), tokens), worth, strict=True))


def architecture_of(
    options: Sequence[Sequence[LayerOption]], head: Sequence[HeadOption], picks: Sequence[int]
) -> Architecture:
    chosen = (layer[pick] for layer, pick in zip(options, picks, strict=False))
    return Architecture(layers=tuple(own.architecture for own in chosen), norm=head[picks[-1]].norm)


def units_of(result: SearchResult) -> dict[Unit, float]:
    return {
        Unit(layer=layer, head=head, row=row): value
        for layer, heads in enumerate(result.alpha)
        for head, rows in enumerate(heads)
        for row, value in enumerate(rows)
    }


def of_layer(alpha: dict[Unit, float], layer: int) -> dict[Unit, float]:
    return {unit: value for unit, value in alpha.items() if unit.layer == layer}


def ranked(alpha: dict[Unit, float]) -> list[Unit]:
    return sorted(alpha, key=lambda unit: (-alpha[unit], unit))


def heads_of(
    result: SearchResult, layer: int, kept: frozenset[Unit]
) -> tuple[Kind | tuple[Kind, ...], ...]:
    def kind(head: int, row: int) -> Kind:
        unit = Unit(layer=layer, head=head, row=row)
        return result.search.kept if unit in kept else result.search.replacement

    heads = []
    for head, rows in enumerate(result.alpha[layer]):
        kinds = tuple(kind(head, row) for row in range(len(rows)))
        heads.append(kinds[0] if len(set(kinds)) == 1 else kinds)
    return tuple(heads) if len(heads) == result.model.heads else (heads[0],) * result.model.heads

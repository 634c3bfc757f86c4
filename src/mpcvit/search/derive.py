"""From alpha and beta to an architecture: by ratio, by budget, by threshold.

One search serves every ratio and every budget; nothing is trained here. Units
are what one alpha stands for: a layer, a head or a row.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from mpcvit.artifacts.architecture import (
    Architecture,
    LayerArchitecture,
    MlpChoice,
    MlpForm,
)
from mpcvit.artifacts.latency import Cost, LatencyTable
from mpcvit.artifacts.search import SearchResult
from mpcvit.errors import UserError
from mpcvit.kinds.table import Kind

# As in the paper's evaluation of MPCViT+.
DEFAULT_GELU_THRESHOLD = 0.75


@dataclass(frozen=True, kw_only=True, order=True)
class Unit:
    """What one alpha stands for; a place is 0 where all share the choice."""

    layer: int
    head: int
    row: int

    def __str__(self) -> str:
        return f"layer {self.layer} head {self.head} row {self.row}"


@dataclass(frozen=True, kw_only=True)
class Derived:
    """An architecture, with how it was chosen."""

    architecture: Architecture
    kept: int
    units: int
    kept_alpha: float
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
    alpha = _units(result)
    count = _count(ratio, len(alpha))
    ranked = _ranked(alpha)
    kept = _spread(alpha, count, result.model.depth) if per_layer else ranked[:count]
    tied_units = () if per_layer else _tied_units(alpha, ranked, count)
    return _finish(result, alpha, frozenset(kept), mlp, tied_units)


def derive_by_budget(
    result: SearchResult, budget_s: float, *, mlp: MlpRule | None = None
) -> Derived:
    """Keep the largest total alpha whose network takes at most `budget_s` seconds.

    Exactly: a layer's seconds depend only on how many units it keeps, and it
    keeps those of the largest alpha first, so the choice is one count per
    layer: a knapsack with one item per class, solved over its Pareto front.
    """
    alpha = _units(result)
    table, forms = result.latency, _mlp_choices(result, mlp)
    by_layer = [
        _ranked({unit: value for unit, value in alpha.items() if unit.layer == layer})
        for layer in range(result.model.depth)
    ]
    fixed = table.rest
    for index, form in enumerate(forms):
        fixed += _mlp_cost(table, index, form)

    def layer_cost(layer: int, kept: int) -> Cost:
        heads = table.heads * kept / len(by_layer[layer])
        expensive = table.attention_cost(layer, result.search.kept)
        cheap = table.attention_cost(layer, result.search.replacement)
        return expensive.total(heads) + cheap.total(table.heads - heads)

    counts = _knapsack(
        values=[list(accumulate((alpha[u] for u in units), initial=0.0)) for units in by_layer],
        seconds=[
            [table.seconds(layer_cost(layer, kept)) for kept in range(len(units) + 1)]
            for layer, units in enumerate(by_layer)
        ],
        budget_s=budget_s - table.seconds(fixed),
        refuse=lambda least_s: UserError(
            f"no network fits {budget_s:g} s: the cheapest, {_name_cheapest(result, forms)}, "
            f"takes {least_s + table.seconds(fixed):.3f} s"
        ),
    )
    kept = frozenset(
        unit for units, count in zip(by_layer, counts, strict=True) for unit in units[:count]
    )
    tied_units = tuple(
        tie
        for units, count in zip(by_layer, counts, strict=True)
        for tie in _tied_units(alpha, units, count)
    )
    return _finish(result, alpha, kept, mlp, tied_units)


def _units(result: SearchResult) -> dict[Unit, float]:
    return {
        Unit(layer=layer, head=head, row=row): value
        for layer, heads in enumerate(result.alpha)
        for head, rows in enumerate(heads)
        for row, value in enumerate(rows)
    }


def _ranked(alpha: dict[Unit, float]) -> list[Unit]:
    return sorted(alpha, key=lambda unit: (-alpha[unit], unit))


def _count(ratio: float, units: int) -> int:
    """Round up, yet let 0.7 of 10 be 7 although 0.7 * 10 is a little more.

    >>> _count(0.7, 10), _count(0.3, 28), _count(0.0, 5)
    (7, 9, 0)
    """
    return math.ceil(round(ratio * units, 9))


def _spread(alpha: dict[Unit, float], count: int, depth: int) -> list[Unit]:
    """Return the same number of units per layer; the odd ones go to the largest alphas."""
    whole, odd = divmod(count, depth)
    by_layer = [
        _ranked({unit: value for unit, value in alpha.items() if unit.layer == layer})
        for layer in range(depth)
    ]
    even = [unit for units in by_layer for unit in units[:whole]]
    next_best = {units[whole]: alpha[units[whole]] for units in by_layer if whole < len(units)}
    return even + _ranked(next_best)[:odd]


def _tied_units(alpha: dict[Unit, float], ranked: Sequence[Unit], count: int) -> tuple[str, ...]:
    if not 0 < count < len(ranked):
        return ()
    last = alpha[ranked[count - 1]]
    return tuple(str(unit) for unit in ranked[count:] if alpha[unit] == last)


def _finish(
    result: SearchResult,
    alpha: dict[Unit, float],
    kept: frozenset[Unit],
    mlp: MlpRule | None,
    tied_units: tuple[str, ...],
) -> Derived:
    layers = tuple(
        LayerArchitecture(heads=_heads(result, layer, kept), mlp=form)
        for layer, form in enumerate(_mlp_choices(result, mlp))
    )
    architecture = Architecture(layers=layers)
    cost = result.latency.price(architecture)
    return Derived(
        architecture=architecture,
        kept=len(kept),
        units=len(alpha),
        kept_alpha=sum(alpha[unit] for unit in kept),
        cost=cost,
        seconds=result.latency.seconds(cost),
        tied_units=tied_units,
    )


def _heads(
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


def _mlp_choices(result: SearchResult, rule: MlpRule | None) -> list[MlpChoice]:
    """Return a form per MLP, or a form per token if its tokens differ."""
    if not result.beta:
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


def _mlp_cost(table: LatencyTable, layer: int, choice: MlpChoice) -> Cost:
    return table.price_layer(layer, LayerArchitecture(heads=(), mlp=choice))


def _name_cheapest(result: SearchResult, forms: Sequence[MlpChoice]) -> str:
    name = f"{result.search.replacement.value} in every head"
    activated = all(form is MlpForm.ACTIVATED for form in forms)
    return name if activated else f"{name} with GeLU by its threshold"


def _knapsack(
    *,
    values: Sequence[Sequence[float]],
    seconds: Sequence[Sequence[float]],
    budget_s: float,
    refuse: Callable[[float], UserError],
) -> tuple[int, ...]:
    """Return one option of every class, with the largest value whose seconds fit.

    Seconds are whole nanoseconds, rounded up, so that what fits truly fits and
    sums that are equal compare so.

    >>> _knapsack(values=[[0, 2, 3], [0, 2, 3]], seconds=[[0, 1, 4], [0, 1, 4]],
    ...           budget_s=5, refuse=lambda least_s: UserError(""))
    (2, 1)
    """
    costs = [[math.ceil(round(s * 1e9, 3)) for s in options] for options in seconds]
    least = sum(min(options) for options in costs)
    budget = math.floor(round(budget_s * 1e9, 3))
    if least > budget:
        raise refuse(least / 1e9)
    spare = least
    front: list[tuple[int, float, tuple[int, ...]]] = [(0, 0.0, ())]
    for options, worth in zip(costs, values, strict=True):
        spare -= min(options)  # what the classes to come take at least
        grown = [
            (cost + options[pick], value + worth[pick], (*picks, pick))
            for cost, value, picks in front
            for pick in range(len(options))
            if cost + options[pick] + spare <= budget
        ]
        # cheapest first, and of equal cost the most valuable, then the earliest picks
        grown.sort(key=lambda state: (state[0], -state[1], tuple(-pick for pick in state[2])))
        front = []
        for state in grown:
            if not front or state[1] > front[-1][1] + 1e-12:
                front.append(state)
    return front[-1][2]

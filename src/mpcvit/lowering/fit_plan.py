"""From calibrated ranges to a plan: the cheapest approximations that keep an error budget."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.errors import UserError
from mpcvit.lowering.fitting import fit
from mpcvit.lowering.sites import (
    SITES,
    Observed,
    Plan,
    Range,
    config_at,
    count_exchanges,
    needed_sites,
)

_TIGHTEST = 1e-5

Tolerances = dict[str, float]
"""By group, the largest error that an approximation may declare."""
LOOSEST: Tolerances = {site.group: site.tolerance for site in SITES if site.group is not None}


@dataclass(frozen=True, kw_only=True)
class FittedPlan:
    """A plan, the tolerances of its fits, and the error of the network's logits."""

    plan: Plan
    tolerances: Tolerances
    error: float


def fit_plan(
    config: ModelConfig,
    architecture: Architecture,
    ranges: Mapping[str, Range],
    tolerances: Tolerances,
    *,
    odd: Mapping[str, Range],
    widest: Mapping[str, float],
    widening: float = 1.0,
) -> Plan:
    """Return an approximation for every label that calibration saw in use.

    Intervals reach beyond what ordinary images gave by margins, and just to what `odd`
    pictures gave. `widest` has the largest magnitude at a label, where it is certain.
    `widening` is the power to which margins are raised, because images are few.
    """
    plan: Plan = {}
    for label, site in needed_sites(config, architecture).items():
        if label not in ranges:
            continue
        layer = label.removesuffix(site.name)
        observed = Observed(
            seen=ranges[label],
            odd=odd.get(label),
            widest=widest.get(label),
            beside=[name.removeprefix(layer) for name in ranges if name.startswith(layer)],
        )
        own = config_at(config, architecture, label)
        tolerance = site.tolerance if site.group is None else tolerances[site.group]
        try:
            plan[label] = fit(site.target(own, observed, site.margin**widening), tolerance)
        except UserError:
            if not site.optional or tolerance < site.tolerance:
                raise
    return plan


def search_plan(
    budget: float,
    fit: Callable[[Tolerances], Plan],
    measure: Callable[[Plan], float],
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> FittedPlan:
    """Return the cheapest plan whose error, measured on the whole network, keeps the budget.

    The search begins with the loosest tolerances. It tightens the one whose exchanges
    buy most accuracy. If even tight ones exceed the budget, the intervals are too wide.
    """
    tried = 0

    def attempt(tolerances: Tolerances) -> FittedPlan:
        nonlocal tried
        plan = fit(tolerances)
        tried += 1
        progress("choosing approximations", tried, 0)
        return FittedPlan(plan=plan, tolerances=tolerances, error=measure(plan))

    progress("choosing approximations", 0, 0)
    best = attempt(LOOSEST)
    while not best.error <= budget:
        options = [attempt(tighter) for tighter in _tightened(best, fit)]
        if not options:
            raise UserError(
                f"the closest approximations leave the logits off by {best.error:.2g} of their "
                f"spread, more than the budget of {budget:g}; allow a larger one"
            )
        best = max(options, key=partial(_gain, best))
    progress("choosing approximations", tried, tried)
    return best


def _gain(before: FittedPlan, after: FittedPlan) -> float:
    """Return the digits won per exchange."""
    exchanges = count_exchanges(after.plan) - count_exchanges(before.plan)
    return math.log(before.error / max(after.error, 1e-12)) / max(exchanges, 1)


def _tightened(fitted: FittedPlan, fit: Callable[[Tolerances], Plan]) -> Iterator[Tolerances]:
    """Yield, for every group, the loosest smaller tolerance that changes the plan."""
    for group, value in fitted.tolerances.items():
        tolerance = value / 2
        while tolerance >= _TIGHTEST:
            tighter = {**fitted.tolerances, group: tolerance}
            try:
                changes = fit(tighter) != fitted.plan
            except UserError:  # nothing known comes that close
                break
            if changes:
                yield tighter
                break
            tolerance /= 2

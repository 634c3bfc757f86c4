"""From calibrated ranges to stand-ins: the cheapest that keep a budget of the whole network."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mpcvit.artifacts.config import ModelConfig
from mpcvit.errors import UserError
from mpcvit.lowering.calibrate import Range, Ranges
from mpcvit.lowering.even_chain import EvenChain, fit_even_chain
from mpcvit.lowering.inverse_root import InverseRoot, fit_inverse_root
from mpcvit.lowering.plan import LayerPlan, Plan
from mpcvit.lowering.reciprocal import Reciprocal, fit_reciprocal
from mpcvit.lowering.steep_chain import Steep, SteepChain, fit_steep_chain

_TIGHTEST = 1e-5
_ODD = 1.05  # room beyond what odd pictures gave, which are extremes by themselves
_ODD_REACH = 4.0  # how much further than other images they may push an interval
_WORTH_ASSURANCE = 1.75  # how much wider an interval may be so that nothing can leave it
_TEMPER = 0.05  # error of a temper, which cancels: the denominator divides by what it leaves


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Largest errors that a stand-in may declare: relative ones, and GeLU's absolute one."""

    norm: float = 5e-2
    exponential: float = 1e-2
    cube: float = 2e-2
    length: float = 1e-2
    denominator: float = 1e-1
    activation: float = 5e-2


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How far beyond what calibration saw an interval reaches, as factors."""

    norm: float = 1.5
    exponential: float = 10.0  # of exp(x), whose largest values are rare and far apart
    cube: float = 1.25
    length: float = 1.5
    denominator: float = 1.5
    activation: float = 1.15


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A plan, the tolerances it was fitted with, and the error of the network's logits."""

    plan: Plan
    tolerances: Tolerances
    error: float


def choose_within(
    budget: float,
    fit: Callable[[Tolerances], Plan],
    measure: Callable[[Plan], float],
    progress: Callable[[int], None] = lambda tried: None,
) -> Choice:
    """The cheapest plan whose error, measured on the whole network, keeps the budget.

    From loose tolerances on, the one is tightened whose exchanges buy most
    accuracy. Where even tight ones exceed the budget, the intervals are too wide.
    """
    tried = 0

    def attempt(tolerances: Tolerances) -> Choice:
        nonlocal tried
        plan = fit(tolerances)
        tried += 1
        progress(tried)
        return Choice(plan=plan, tolerances=tolerances, error=measure(plan))

    best = attempt(Tolerances())
    while not best.error <= budget:
        options = [attempt(tighter) for tighter in _tightened(best, fit)]
        if not options:
            raise UserError(
                f"the closest stand-ins leave the logits off by {best.error:.2g} of their spread, "
                f"more than the budget of {budget:g}; allow a larger one"
            )
        best = max(options, key=partial(_gain, best))
    return best


def _gain(before: Choice, after: Choice) -> float:
    """Digits won per exchange."""
    exchanges = after.plan.exchanges - before.plan.exchanges
    return math.log(before.error / max(after.error, 1e-12)) / max(exchanges, 1)


def _tightened(choice: Choice, fit: Callable[[Tolerances], Plan]) -> Iterator[Tolerances]:
    """For every tolerance the loosest smaller one that changes the plan."""
    for name, value in vars(choice.tolerances).items():
        tolerance = value / 2
        while tolerance >= _TIGHTEST:
            tighter = replace(choice.tolerances, **{name: tolerance})
            try:
                changes = fit(tighter) != choice.plan
            except UserError:  # nothing known comes that close
                break
            if changes:
                yield tighter
                break
            tolerance /= 2


def choose(
    config: ModelConfig,
    ranges: Ranges,
    tolerances: Tolerances,
    margins: Margins | None = None,
    *,
    odd: Ranges | None = None,
    widest: Sequence[float | None] = (),
) -> Plan:
    """A stand-in for every place that calibration saw in use.

    Intervals reach beyond what ordinary images gave by margins, and just to what `odd`
    pictures did. `widest` holds for each layer what its activation is given at most,
    where that is known for certain.
    """
    margins = margins or Margins()
    odd = odd or Ranges(layers=({},) * len(ranges.layers), norm=None)

    def norm(seen: Range | None, odd: Range | None) -> InverseRoot | None:
        if seen is None:
            return None
        wide = seen.times(margins.norm)
        most = wide.times(_ODD_REACH)
        if odd is not None:
            wide = wide.reaching(odd.times(_ODD))
        low, high = max(wide.low, most.low), min(wide.high, most.high)
        return fit_inverse_root(low, high, config.norm_eps, tolerances.norm)

    def exponential(seen: Range | None, odd: Range | None) -> SteepChain | None:
        if seen is None:
            return None
        room, odd = math.log(margins.exponential), odd or seen
        low, high = min(seen.low, -1.0) - room / 2, max(seen.high, 1.0) + room
        reach = math.log(_ODD_REACH)
        low, high = min(low, max(odd.low, low - reach)), max(high, min(odd.high, high + reach))
        low, high = _in_halves(low, high)
        return fit_steep_chain(Steep.EXP, low, high, tolerances.exponential)

    def temper(seen: Range | None, odd: Range | None) -> Reciprocal | None:
        if seen is None:
            return None
        high = max(seen.high, 1.0) * margins.exponential
        if odd is not None:
            high = max(high, min(odd.high * _ODD, high * _ODD_REACH))
        return fit_reciprocal(max(0.9, 1e-5 * high), high, _TEMPER)

    def cube(seen: Range | None) -> SteepChain | None:
        if seen is None:
            return None
        low, high = _in_halves(seen.low * margins.cube, seen.high * margins.cube)
        try:
            return fit_steep_chain(Steep.RECTIFIED_CUBE, low, high, tolerances.cube)
        except UserError:
            if tolerances.cube < Tolerances.cube:
                raise
            return None  # a comparison takes its place

    def length(seen: Range | None) -> InverseRoot | None:
        if seen is None:
            return None
        high = max(seen.high, 1e-6) * margins.length
        # what is shorter is scaled by about as much as the shortest of the interval
        low = max(seen.low_share / margins.length, 1e-3 * high)
        return fit_inverse_root(low, high, config.xnorm_eps, tolerances.length)

    def denominator(
        seen: Range | None, odd: Range | None, *, is_tempered: bool
    ) -> Reciprocal | None:
        if seen is None:
            return None
        high = max(seen.high, 1e-3) * margins.denominator
        # few are far lower than others, and fade out rather than be paid for
        low = max(seen.low, seen.low_share / _ODD_REACH) / margins.denominator
        if odd is not None:
            high = max(high, min(odd.high * _ODD, high * _ODD_REACH))
            low = min(low, max(odd.low / _ODD, low / _ODD_REACH))
        low = max(low, 1e-4 * high)
        if is_tempered:  # known without an image: from 1 to the number of keys
            low = min(low, 1.0) * (1 - _TEMPER) ** 2
            high = max(high, config.tokens * (1 + _TEMPER) ** 2)
        return fit_reciprocal(low, high, tolerances.denominator)

    def activation(seen: Range | None, odd: Range | None, widest: float | None) -> EvenChain | None:
        if seen is None:
            return None
        bound = max(abs(seen.low), abs(seen.high)) * margins.activation
        if odd is not None:
            bound = max(bound, abs(odd.low), abs(odd.high))
        if widest is not None and bound < widest <= _WORTH_ASSURANCE * bound:
            bound = widest
        # in steps of a half, so that layers share what is slow to fit
        bound = max(2.0, math.ceil(2 * bound) / 2)
        return fit_even_chain(config.activation, bound, tolerances.activation)

    return Plan(
        layers=tuple(
            LayerPlan(
                norm1=norm(layer["norm1"], other.get("norm1")),
                exponential=exponential(layer["exponential"], other.get("exponential")),
                temper=temper(layer["temper"], other.get("temper")),
                cube=cube(layer["cube"]),
                query_length=length(layer["query_length"]),
                product_length=length(layer["product_length"]),
                denominator=denominator(
                    layer["denominator"],
                    other.get("denominator"),
                    is_tempered=layer["temper"] is not None,
                ),
                norm2=norm(layer["norm2"], other.get("norm2")),
                activation=activation(layer["activation"], other.get("activation"), most),
            )
            for layer, other, most in zip(
                ranges.layers, odd.layers, widest or (None,) * len(ranges.layers), strict=True
            )
        ),
        norm=norm(ranges.norm, odd.norm),
    )


def _in_halves(low: float, high: float) -> tuple[float, float]:
    """An interval's ends at multiples of a half, so that layers share what is slow to fit."""
    return math.floor(2 * low) / 2, math.ceil(2 * high) / 2

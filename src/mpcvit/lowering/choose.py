"""From calibrated ranges to stand-ins: the cheapest that keep their tolerances."""

import math
from dataclasses import dataclass

from mpcvit.config import ModelConfig
from mpcvit.lowering.calibrate import Range, Ranges
from mpcvit.lowering.even_chain import EvenChain, fit_even_chain
from mpcvit.lowering.inverse_root import InverseRoot, fit_inverse_root
from mpcvit.lowering.plan import LayerPlan, Plan
from mpcvit.lowering.reciprocal import Reciprocal, fit_reciprocal


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Largest errors that a stand-in may declare: relative ones, and GeLU's absolute one."""

    norm: float = 1e-3
    denominator: float = 5e-3
    activation: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Margins:
    """How far beyond what calibration saw an interval reaches, as factors."""

    norm: float = 1.5
    denominator: float = 1.5
    activation: float = 1.15


def choose(
    config: ModelConfig,
    ranges: Ranges,
    tolerances: Tolerances | None = None,
    margins: Margins | None = None,
) -> Plan:
    """A stand-in for every place that calibration saw in use."""
    tolerances, margins = tolerances or Tolerances(), margins or Margins()

    def norm(seen: Range | None) -> InverseRoot | None:
        if seen is None:
            return None
        low, high = seen.low / margins.norm, seen.high * margins.norm
        return fit_inverse_root(low, high, config.norm_eps, tolerances.norm)

    def denominator(seen: Range | None) -> Reciprocal | None:
        if seen is None:
            return None
        high = max(seen.high, 1e-3) * margins.denominator
        # lower ones fade out, so that the few there are need not be paid for
        low = max(seen.low_share, 1e-4 * high)
        return fit_reciprocal(low, high, tolerances.denominator)

    def activation(seen: Range | None) -> EvenChain | None:
        if seen is None:
            return None
        bound = max(abs(seen.low), abs(seen.high)) * margins.activation
        # in steps of a half, so that layers share what is slow to fit
        bound = max(2.0, math.ceil(2 * bound) / 2)
        return fit_even_chain(config.activation, bound, tolerances.activation)

    return Plan(
        layers=tuple(
            LayerPlan(
                norm1=norm(layer["norm1"]),
                denominator=denominator(layer["denominator"]),
                norm2=norm(layer["norm2"]),
                activation=activation(layer["activation"]),
            )
            for layer in ranges.layers
        ),
        norm=norm(ranges.norm),
    )

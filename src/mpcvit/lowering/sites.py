"""Sites: the places of a network where lowering may replace a function by an approximation.

A label names a site of one layer, as in "block 0 norm1". The norms after the embedding
and before the head are sites too. A plan has an approximation for each label that the
network needs.
"""

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.forms import LayerForm, NormForm
from mpcvit.artifacts.resolve import forms_of, head_norm_of, queries_of
from mpcvit.errors import UserError
from mpcvit.lowering.approximations import (
    GELU_FORMS,
    Approximation,
    ExponentialPolynomial,
    GeluPolynomial,
    InverseRoot,
    Reciprocal,
    SteepFunction,
    rectified_cube,
)
from mpcvit.model.layers import activate

Function = Callable[[Array], Array]
Functions = Mapping[str, Function]
"""The functions that a network cannot do by sums and products alone, by label."""
LayerFunctions = Mapping[str, Function]
"""The functions of one layer, by the name of their site."""
Plan = dict[str, Approximation]
"""The approximations of a network, by label. Both parties know them."""

EMBED_NORM = "embedding norm"
HEAD_NORM = "head norm"
_ODD = 1.05  # room beyond what odd pictures gave, which are extremes by themselves
_ODD_REACH = 4.0  # how much further than other images they may push an interval
_WORTH_ASSURANCE = 1.75  # how much wider an interval may be so that nothing can leave it
_ROW_SCALE_ERROR = 0.05  # it cancels: the denominator divides by what the row scale leaves


@dataclass(frozen=True, kw_only=True)
class Range:
    """The range of a function's inputs: extremes, and the value that few lie below."""

    low: float
    high: float
    low_share: float  # a small share of the values is below it; see calibrate.py

    def reaching(self, other: "Range") -> "Range":
        """Return a range with the extremes of another where they are further out."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def times(self, factor: float) -> "Range":
        """Return a range of values that are not negative, with both ends further out."""
        return replace(self, low=self.low / factor, high=self.high * factor)


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The knowledge of the values at one label.

    `odd` is the range that odd pictures gave, `widest` the largest magnitude that is
    possible at all, and `beside` names the sites that the same layer has.
    """

    seen: Range
    odd: Range | None = None
    widest: float | None = None
    beside: Container[str] = ()


@dataclass(frozen=True)
class Target:
    """A fit to make: a class of approximations, and its arguments but the tolerance."""

    approximation: type[Approximation]
    arguments: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Site:
    """A place of a layer where a function may be replaced by an approximation."""

    name: str
    group: str | None  # sites whose tolerance is tightened together; None: it never is
    tolerance: float  # the loosest error, with which the search begins
    margin: float  # how far an interval reaches beyond calibration, as a factor
    approximation: type[Approximation]
    needed: Callable[[LayerForm, LayerArchitecture], bool]
    exact: Callable[[ModelConfig], Function]
    target: Callable[[ModelConfig, Observed, float], Target]
    optional: bool = False  # exact where no approximation is close enough


def site_label(layer: int, name: str) -> str:
    """Return the label of a layer's site."""
    return f"block {layer} {name}"


def needed_sites(config: ModelConfig, architecture: Architecture) -> dict[str, Site]:
    """Return the sites that some token that is read needs, by label."""
    sites = {
        site_label(index, site.name): site
        for index, (form, layer) in enumerate(
            zip(forms_of(config, architecture), architecture.layers, strict=True)
        )
        for site in SITES
        if site.needed(form, layer.of_first(queries_of(config, architecture, index)))
    }
    if config.embed_norm:
        sites = {EMBED_NORM: END_SITE, **sites}
    has_norm = head_norm_of(config, architecture) is NormForm.LAYER
    return sites | ({HEAD_NORM: END_SITE} if has_norm else {})


def config_at(config: ModelConfig, architecture: Architecture, label: str) -> ModelConfig:
    """Return the configuration of the layer that a label belongs to."""
    if label in (EMBED_NORM, HEAD_NORM):
        return config
    form = forms_of(config, architecture)[int(label.split()[1])]
    return replace(config, activation=form.activation)


def exact_functions(config: ModelConfig, architecture: Architecture) -> dict[str, Function]:
    """Return the exact float32 functions for every site that the network uses."""
    sites = needed_sites(config, architecture)
    return {
        label: site.exact(config_at(config, architecture, label)) for label, site in sites.items()
    }


def layer_functions(functions: Functions, layer: int) -> LayerFunctions:
    """Return the functions of one layer, by the name of their site."""
    labels = {site.name: site_label(layer, site.name) for site in SITES}
    return {name: functions[label] for name, label in labels.items() if label in functions}


def require_plan(plan: Plan, config: ModelConfig, architecture: Architecture) -> None:
    """Refuse a plan that lacks an approximation, or has another than the network calls."""
    sites = needed_sites(config, architecture)
    for label, site in sites.items():
        approximation = plan.get(label)
        if approximation is None and not site.optional:
            raise UserError(f"the plan is invalid: it has no approximation for {label!r}")
        if approximation is not None and not isinstance(approximation, site.approximation):
            raise UserError(
                f"the plan is invalid: {label!r} must be a {site.approximation.__name__}, "
                f"not a {type(approximation).__name__}"
            )
    if unknown := sorted(set(plan) - set(sites)):
        raise UserError(f"the plan is invalid: the network has no site {unknown[0]!r}")


def count_exchanges(plan: Plan) -> int:
    """Return the exchanges of all approximations, in a ring that truncates locally."""
    return sum(approximation.exchanges for approximation in plan.values())


def _uses(name: str) -> Callable[[LayerForm, LayerArchitecture], bool]:
    return lambda form, layer: any(name in kind.sites for kind in layer.kinds)


def _has_gelu(form: LayerForm, layer: LayerArchitecture) -> bool:
    forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,)
    return form.activation in GELU_FORMS and MlpForm.ACTIVATED in forms


def _norm_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    wide = observed.seen.times(margin)
    most = wide.times(_ODD_REACH)
    if observed.odd is not None:
        wide = wide.reaching(observed.odd.times(_ODD))
    low, high = max(wide.low, most.low), min(wide.high, most.high)
    return Target(InverseRoot, (low, high, config.norm_eps))


def _exponential_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    seen, odd, room = observed.seen, observed.odd or observed.seen, math.log(margin)
    low, high = min(seen.low, -1.0) - room / 2, max(seen.high, 1.0) + room
    reach = math.log(_ODD_REACH)
    low, high = min(low, max(odd.low, low - reach)), max(high, min(odd.high, high + reach))
    return Target(ExponentialPolynomial, (SteepFunction.EXP, *_in_halves(low, high)))


def _row_scale_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    high = max(observed.seen.high, 1.0) * margin
    if observed.odd is not None:
        high = max(high, min(observed.odd.high * _ODD, high * _ODD_REACH))
    return Target(Reciprocal, (max(0.9, 1e-5 * high), high))


def _cube_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    interval = _in_halves(observed.seen.low * margin, observed.seen.high * margin)
    return Target(ExponentialPolynomial, (SteepFunction.RECTIFIED_CUBE, *interval))


def _length_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    high = max(observed.seen.high, 1e-6) * margin
    # shorter rows are scaled by about as much as the shortest of the interval
    low = max(observed.seen.low_share / margin, 1e-3 * high)
    return Target(InverseRoot, (low, high, config.xnorm_eps))


def _denominator_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    seen, odd = observed.seen, observed.odd
    high = max(seen.high, 1e-3) * margin
    # few are far lower than others, and fade out rather than be paid for
    low = max(seen.low, seen.low_share / _ODD_REACH) / margin
    if odd is not None:
        high = max(high, min(odd.high * _ODD, high * _ODD_REACH))
        low = min(low, max(odd.low / _ODD, low / _ODD_REACH))
    low = max(low, 1e-4 * high)
    if "row_scale" in observed.beside:  # known without an image: from 1 to the number of keys
        low = min(low, 1.0) * (1 - _ROW_SCALE_ERROR) ** 2
        high = max(high, config.tokens * (1 + _ROW_SCALE_ERROR) ** 2)
    return Target(Reciprocal, (low, high))


def _activation_target(config: ModelConfig, observed: Observed, margin: float) -> Target:
    seen, odd, widest = observed.seen, observed.odd, observed.widest
    bound = max(abs(seen.low), abs(seen.high)) * margin
    if odd is not None:
        bound = max(bound, abs(odd.low), abs(odd.high))
    if widest is not None and bound < widest <= _WORTH_ASSURANCE * bound:
        bound = widest
    # in steps of a half, so that layers share what is slow to fit
    return Target(GeluPolynomial, (config.activation, max(2.0, math.ceil(2 * bound) / 2)))


def _in_halves(low: float, high: float) -> tuple[float, float]:
    """Return an interval with ends at multiples of a half, so that layers share slow fits."""
    return math.floor(2 * low) / 2, math.ceil(2 * high) / 2


def _inverse_root(eps_field: str) -> Callable[[ModelConfig], Function]:
    return lambda config: lambda x: lax.rsqrt(x + getattr(config, eps_field))


_NORM = Site(
    name="norm1",  # of the mean square of a centred token
    group="norm",
    tolerance=5e-2,
    margin=1.5,
    approximation=InverseRoot,
    needed=lambda form, layer: form.norm1 is NormForm.LAYER,
    exact=_inverse_root("norm_eps"),
    target=_norm_target,
)
_LENGTH = Site(
    name="query_length",  # of the square of XNorm's rows of queries
    group="length",
    tolerance=1e-2,
    margin=1.5,
    approximation=InverseRoot,
    needed=_uses("query_length"),
    exact=_inverse_root("xnorm_eps"),
    target=_length_target,
)
END_SITE = replace(_NORM, name="norm")  # of the embedding, or of the head
SITES = (
    _NORM,
    Site(
        name="exponential",  # of softmax's centred scores
        group="exponential",
        tolerance=1e-2,
        margin=10.0,  # of exp(x), whose largest values are rare and far apart
        approximation=ExponentialPolynomial,
        needed=_uses("exponential"),
        exact=lambda config: jnp.exp,
        target=_exponential_target,
    ),
    Site(
        name="row_scale",  # of the mean exponential of a row
        group=None,
        tolerance=_ROW_SCALE_ERROR,
        margin=10.0,
        approximation=Reciprocal,
        needed=_uses("row_scale"),
        exact=lambda config: lambda x: 1 / x,
        target=_row_scale_target,
    ),
    Site(
        name="cube",  # of THE-X's scores
        group="cube",
        tolerance=2e-2,
        margin=1.25,
        approximation=ExponentialPolynomial,
        needed=_uses("cube"),
        exact=lambda config: rectified_cube,
        target=_cube_target,
        optional=True,
    ),
    _LENGTH,
    replace(_LENGTH, name="product_length"),  # of the square of rows of k' v
    Site(
        name="denominator",  # of the sum of a row of attention weights
        group="denominator",
        tolerance=1e-1,
        margin=1.5,
        approximation=Reciprocal,
        needed=_uses("denominator"),
        exact=lambda config: lambda x: 1 / (x + config.attention_eps),
        target=_denominator_target,
    ),
    replace(_NORM, name="norm2", needed=lambda form, layer: form.norm2 is NormForm.LAYER),
    Site(
        name="activation",
        group="activation",
        tolerance=5e-2,
        margin=1.15,
        approximation=GeluPolynomial,
        needed=_has_gelu,
        exact=lambda config: lambda x: activate(config.activation, x),
        target=_activation_target,
    ),
)

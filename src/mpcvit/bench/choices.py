"""The latency file of lowered networks, by every choice of a search, measured.

A choice costs what it adds to a network of scaling heads, batch norms and learnt
quadratics with as many tokens. A network that makes the choice in all of its layers
gives the prices of all of them. `docs/search.md` says which prices add up exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.latency import ChoiceCost, Cost, LatencyTable, LayerCosts, NormCosts
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import Reveal
from mpcvit.bench.latency import (
    Progress,
    line_through,
    make_table,
    not_below_zero,
    require_rounds,
    stage_costs,
)
from mpcvit.bench.lowered import lower_with_plan, plan_for
from mpcvit.kinds.table import SCALING, Kind
from mpcvit.lowering.engine import choose_engine
from mpcvit.lowering.program import PublicProgram
from mpcvit.secure.card import LEAST_RUNS

_EMBEDDING, _HEAD = "embedding", "head"


def measure_choice_latency(
    model: ModelConfig,
    profile: Profile,
    kinds: Sequence[Kind],
    token_counts: Sequence[int],
    references: Sequence[PublicProgram],
    progress: Progress = lambda what, done, total: None,
) -> LatencyTable:
    """Count and time every choice of a lowered network of a model's shape.

    Weights are random, which changes no count. Approximations are those of `references`,
    which were lowered from trained networks. Prices are of an image in a session whose
    set-up has paid, and the class alone is revealed.
    """
    require_rounds(profile)
    kinds = [kind for kind in kinds if kind is not SCALING]
    counts = (model.tokens, *token_counts)
    variants = [variant for count in counts for variant in _variants(model, kinds, count)]
    found: dict[_Variant, dict[str, Cost]] = {}
    for done, variant in enumerate(variants):
        progress("profiling", done, len(variants))
        architecture = variant.architecture(model)
        program = lower_with_plan(
            plan_for(architecture, references), model, architecture, choose_engine(profile)
        )
        found[variant] = stage_costs(program, profile, images=LEAST_RUNS, reveal=Reveal.CLASS)
    progress("profiling", len(variants), len(variants))
    layers = []
    for index in range(model.depth):
        whole, *fewer = (_layer_costs(model, kinds, count, found, index) for count in counts)
        layers.append(replace(whole, fewer=tuple(fewer)))
    base = found[_Variant(tokens=model.tokens)]
    rest = sum((cost for name, cost in base.items() if not name.startswith("block ")), Cost())
    settings = choose_engine(profile).apply(profile)
    return make_table(model, settings, tuple(layers), rest, "lowered networks")


@dataclass(frozen=True, kw_only=True)
class _Variant:
    """A network all of whose layers make the same choices."""

    tokens: int
    norm1: bool = False  # whether these are layer norms
    norm2: bool = False
    head: bool = False
    activation: Activation = Activation.QUADRATIC
    kind: Kind = SCALING
    heads: int = 0  # of this kind; the others are of scaling

    def architecture(self, model: ModelConfig) -> Architecture:
        form = FormChoice(
            norm1=_norm(self.norm1),
            norm2=_norm(self.norm2),
            activation=self.activation,
            tokens=self.tokens,
        )
        heads = (self.kind,) * self.heads + (SCALING,) * (model.heads - self.heads)
        layer = LayerArchitecture(heads=heads, form=form)
        return Architecture(layers=(layer,) * model.depth, norm=_norm(self.head))


def _norm(is_layer: bool) -> NormForm:
    return NormForm.LAYER if is_layer else NormForm.BATCH


def _activation(model: ModelConfig) -> Activation:
    """Return what a learnt quadratic is compared with."""
    learnt = model.activation is Activation.QUADRATIC
    return Activation.GELU if learnt else model.activation


def _variants(model: ModelConfig, kinds: Sequence[Kind], tokens: int) -> list[_Variant]:
    return [
        _Variant(tokens=tokens),
        _Variant(tokens=tokens, norm1=True),
        _Variant(tokens=tokens, norm2=True),
        _Variant(tokens=tokens, head=True),
        _Variant(tokens=tokens, norm1=True, norm2=True, head=True),
        _Variant(tokens=tokens, activation=_activation(model)),
        *(
            _Variant(tokens=tokens, kind=kind, heads=heads)
            for kind in kinds
            for heads in sorted({1, model.heads})
        ),
    ]


def _layer_costs(
    model: ModelConfig,
    kinds: Sequence[Kind],
    tokens: int,
    found: dict[_Variant, dict[str, Cost]],
    index: int,
) -> LayerCosts:
    """Return the prices of one layer as differences between networks.

    The first layer also answers for what its norm changes in the embedding, and the last
    one for what the norm after it changes in the head.
    """
    first, last = index == 0, index == model.depth - 1
    names = [f"block {index}", *[_EMBEDDING] * first, *[_HEAD] * last]
    base = found[_Variant(tokens=tokens)]

    def added(**choices: object) -> Cost:
        costs = found[_Variant(tokens=tokens, **choices)]  # pyright: ignore[reportArgumentType]
        return sum((costs[name] + base[name].times(-1) for name in names), Cost())

    # A layer with a layer norm pays for its gain if a later norm is one: of these networks,
    # all but the last layer do, and the last one only with the norm before the head.
    norm1, norm2, head = added(norm1=True), added(norm2=True), added(head=True)
    every = added(norm1=True, norm2=True, head=True)
    if last:
        gain = every + (norm1 + norm2 + head).times(-1)
    else:
        gain = norm1 + norm2 + every.times(-1)
        norm1, norm2 = norm1 + gain.times(-1), norm2 + gain.times(-1)
        head = Cost()
    other = _activation(model)
    attention = {
        kind: line_through(
            not_below_zero(added(kind=kind, heads=1)),
            not_below_zero(added(kind=kind, heads=model.heads)),
            model.heads,
        )
        for kind in kinds
    }
    return LayerCosts(
        attention={SCALING: ChoiceCost(), **attention},
        mlp={MlpForm.ACTIVATED: ChoiceCost()},
        products=base[f"block {index}"],
        norms=NormCosts(
            norm1=not_below_zero(norm1),
            norm2=not_below_zero(norm2),
            gain=not_below_zero(gain),
            head=not_below_zero(head),
        ),
        activation={
            Activation.QUADRATIC: Cost(),
            other: not_below_zero(added(activation=other)),
        },
        tokens=tokens,
    )

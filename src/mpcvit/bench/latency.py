"""The latency file, measured: what every choice of a network costs under a profile.

A choice is measured at two sizes. What does not grow is paid once by all who make the
choice, and what grows by each of them. In lowered networks, where heads share their
products, a choice costs what it adds to a network of scaling heads. `docs/search.md`
says which of these prices add up exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.latency import ChoiceCost, Cost, LatencyTable, LayerCosts, NormCosts
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import names_with
from mpcvit.artifacts.provenance import Environment
from mpcvit.artifacts.record import Reveal, StageCost
from mpcvit.bench.lowered import lower_like, lower_with_plan
from mpcvit.bench.networks import random_checkpoint, random_images
from mpcvit.codec import encode
from mpcvit.errors import UserError
from mpcvit.kinds.table import SCALING, Kind
from mpcvit.lowering.program import Model, PublicProgram, SecureProgram
from mpcvit.progress import Progress, counted, quiet
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.components import Component, attention_core, mlp
from mpcvit.secure.probe import measure_function
from mpcvit.secure.run import run
from mpcvit.secure.spu.stages import fit_fixed_point

_Stages = dict[str, Cost]  # by name


def measure_latency(
    model: ModelConfig, profile: Profile, kinds: Sequence[Kind], progress: Progress = quiet
) -> LatencyTable:
    """Count and time every kind and form of a model's layers, and the network around them."""
    require_rounds(profile)
    uniform = partial(Architecture.uniform, depth=model.depth, heads=model.heads)
    attention: dict[Kind, ChoiceCost] = {}
    forms: dict[MlpForm, ChoiceCost] = {}
    for choice in counted("profiling", [*kinds, *MlpForm], progress):
        if isinstance(choice, MlpForm):
            forms[choice] = _affine(partial(mlp, choice, model), model.tokens, profile)
        else:
            fitted, _ = fit_fixed_point(model, uniform(choice), profile)
            core = partial(attention_core, choice, fitted)
            attention[choice] = _affine(core, model.heads, profile)
    layer = LayerCosts(attention=attention, mlp=forms)
    layers, what = (layer,) * model.depth, "networks as they are written"
    table = _make_table(model, profile, layers, Cost(), what)
    architecture = uniform(kinds[0])
    whole = stage_costs(random_checkpoint(model, architecture), profile, images=1)
    rest = _sum(whole) + table.price(architecture).times(-1)
    return replace(table, rest=_not_below_zero(rest))


def measure_lowered_latency(
    program: SecureProgram,
    profile: Profile,
    kinds: Sequence[Kind],
    progress: Progress = quiet,
    forms: Sequence[MlpForm] = tuple(MlpForm),
) -> LatencyTable:
    """Count and time every choice as networks with a program's approximations make it.

    Prices are what a choice adds to a network of scaling heads and fused MLPs, from the
    second image on.
    """
    require_rounds(profile)
    model = program.model
    kinds = [kind for kind in kinds if kind is not SCALING]
    priced = [form for form in forms if form.with_fused_linears is not MlpForm.FUSED]
    linear, fused = (SCALING,) * model.heads, (MlpForm.FUSED,) * model.tokens
    variants = {
        (): LayerArchitecture(heads=linear, mlp=fused),
        **{
            (kind, count): LayerArchitecture(heads=(kind,) * count + linear[count:], mlp=fused)
            for kind in kinds
            for count in (1, model.heads)
        },
        **{
            (form, count): LayerArchitecture(heads=linear, mlp=(form,) * count + fused[count:])
            for form in priced
            for count in (1, model.tokens)
        },
    }
    costs = {}
    for key, layer in counted("profiling", variants.items(), progress):
        architecture = Architecture(layers=(layer,) * model.depth)
        variant = lower_with_plan(program.plan, model, architecture, program.engine)
        costs[key] = stage_costs(variant, profile, images=LEAST_RUNS)

    def price(choice: Kind | MlpForm, most: int, index: int) -> ChoiceCost:
        """Draw a line through what one and what all who make a choice add to a layer."""
        name = f"block {index}"
        one, every = (
            _not_below_zero(costs[choice, count][name] + costs[()][name].times(-1))
            for count in (1, most)
        )
        return _line_through(one, every, most)

    layers = tuple(
        LayerCosts(
            attention={
                SCALING: ChoiceCost(),
                **{kind: price(kind, model.heads, index) for kind in kinds},
            },
            mlp={
                form: price(form, model.tokens, index) if form in priced else ChoiceCost()
                for form in forms
            },
        )
        for index in range(model.depth)
    )
    settings = program.engine.apply(profile)
    return _make_table(model, settings, layers, _sum(costs[()]), "lowered networks")


def measure_choice_latency(
    model: ModelConfig,
    profile: Profile,
    kinds: Sequence[Kind],
    token_counts: Sequence[int],
    references: Sequence[PublicProgram],
    progress: Progress = quiet,
) -> LatencyTable:
    """Count and time every choice of a search, norms, activations and tokens too, as lowered.

    A choice costs what it adds to a network of scaling heads, batch norms and learnt
    quadratics with as many tokens. Weights are random, and approximations those of
    `references`. Prices are of an image in a session whose set-up has paid, and the
    class alone is revealed.
    """
    require_rounds(profile)
    kinds = [kind for kind in kinds if kind is not SCALING]
    counts = (model.tokens, *token_counts)
    variants = [variant for count in counts for variant in _variants(model, kinds, count)]
    costs: dict[_Variant, _Stages] = {}
    for variant in counted("profiling", variants, progress):
        program = lower_like(references, model, variant.architecture(model), profile)
        costs[variant] = stage_costs(program, profile, images=LEAST_RUNS, reveal=Reveal.CLASS)
    layers = []
    for index in range(model.depth):
        whole, *fewer = (_layer_costs(model, kinds, count, costs, index) for count in counts)
        layers.append(replace(whole, fewer=tuple(fewer)))
    base = costs[_Variant(tokens=model.tokens)]
    rest = _sum({name: cost for name, cost in base.items() if not name.startswith("block ")})
    settings = choose_engine(profile).apply(profile)
    return _make_table(model, settings, tuple(layers), rest, "lowered networks")


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
        norm1, norm2, head = (
            NormForm.LAYER if is_layer else NormForm.BATCH
            for is_layer in (self.norm1, self.norm2, self.head)
        )
        form = FormChoice(norm1=norm1, norm2=norm2, activation=self.activation, tokens=self.tokens)
        heads = (self.kind,) * self.heads + (SCALING,) * (model.heads - self.heads)
        layer = LayerArchitecture(heads=heads, form=form)
        return Architecture(layers=(layer,) * model.depth, norm=head)


def _activation(model: ModelConfig) -> Activation:
    """Return what a learnt quadratic is compared with."""
    learnt = model.activation is Activation.QUADRATIC
    return Activation.GELU if learnt else model.activation


def _variants(model: ModelConfig, kinds: Sequence[Kind], tokens: int) -> list[_Variant]:
    make = partial(_Variant, tokens=tokens)
    return [
        make(),
        make(norm1=True),
        make(norm2=True),
        make(head=True),
        make(norm1=True, norm2=True, head=True),
        make(activation=_activation(model)),
        *(make(kind=kind, heads=heads) for kind in kinds for heads in sorted({1, model.heads})),
    ]


def _layer_costs(
    model: ModelConfig,
    kinds: Sequence[Kind],
    tokens: int,
    costs: dict[_Variant, _Stages],
    index: int,
) -> LayerCosts:
    """Return the prices of one layer as differences between networks.

    The first layer also answers for what its norm changes in the embedding, and the last
    one for what the norm after it changes in the head.
    """
    is_last = index == model.depth - 1
    names = [f"block {index}", *["embedding"] * (index == 0), *["head"] * is_last]
    base = costs[_Variant(tokens=tokens)]

    def added(**choices: object) -> Cost:
        variant = costs[_Variant(tokens=tokens, **choices)]  # pyright: ignore[reportArgumentType]
        return sum((variant[name] + base[name].times(-1) for name in names), Cost())

    # A layer with a layer norm pays for its gain if a later norm is one: of these networks,
    # all but the last layer do, and the last one only with the norm before the head.
    norm1, norm2, head = added(norm1=True), added(norm2=True), added(head=True)
    every = added(norm1=True, norm2=True, head=True)
    if is_last:
        gain = every + (norm1 + norm2 + head).times(-1)
    else:
        gain = norm1 + norm2 + every.times(-1)
        norm1, norm2 = norm1 + gain.times(-1), norm2 + gain.times(-1)
        head = Cost()
    norms = {"norm1": norm1, "norm2": norm2, "gain": gain, "head": head}
    other = _activation(model)
    attention = {
        kind: _line_through(
            _not_below_zero(added(kind=kind, heads=1)),
            _not_below_zero(added(kind=kind, heads=model.heads)),
            model.heads,
        )
        for kind in kinds
    }
    return LayerCosts(
        attention={SCALING: ChoiceCost(), **attention},
        mlp={MlpForm.ACTIVATED: ChoiceCost()},
        products=base[f"block {index}"],
        norms=NormCosts(**{name: _not_below_zero(cost) for name, cost in norms.items()}),
        activation={
            Activation.QUADRATIC: Cost(),
            other: _not_below_zero(added(activation=other)),
        },
        tokens=tokens,
    )


def stage_costs(
    model: Model, profile: Profile, *, images: int, reveal: Reveal = Reveal.LOGITS
) -> _Stages:
    """Return the cost of every stage for the last of some images, computing for the quickest."""
    pixels = random_images(model.model, images)
    batches = run(model, pixels, profile, reveal=reveal, simulate=True).record.batches
    return {
        stages[-1].name: replace(
            _cost(stages[-1]), compute_s=min(stage.compute_s for stage in stages)
        )
        for stages in zip(*(batch.stages for batch in batches), strict=True)
    }


def require_rounds(profile: Profile) -> None:
    if not profile.protocol.counts_rounds:
        raise UserError(
            f"a latency file prices exchanges, and messages of {profile.protocol.name} are no "
            f"rounds; use a profile of {names_with(counts_rounds=True)}"
        )


def _make_table(
    model: ModelConfig, profile: Profile, layers: tuple[LayerCosts, ...], rest: Cost, what: str
) -> LatencyTable:
    return LatencyTable(
        source=(
            f"measured: counts and CPU seconds of {what} under {profile.protocol.name} on SPU "
            f"({profile.ring_bits}-bit ring, {profile.fraction_bits} fraction bits), "
            "network modelled"
        ),
        network=profile.network,
        heads=model.heads,
        tokens=model.tokens,
        layers=layers,
        rest=rest,
        details={
            "model": encode(model),
            "profile": encode(profile),
            "environment": vars(Environment.current()),
            **({"warning": profile.warning} if profile.warning else {}),
        },
    )


def _affine(make: Callable[[int], Component], most: int, profile: Profile) -> ChoiceCost:
    """Draw a line through the costs of one and of all who make a choice."""
    one, every = (
        _cost(measure_function(component.function, component.inputs, profile).cost)
        for component in (make(1), make(most))
    )
    return _line_through(one, every, most)


def _line_through(one: Cost, every: Cost, most: int) -> ChoiceCost:
    if most == 1:
        return ChoiceCost(per_unit=one)
    each = (every + one.times(-1)).times(1 / (most - 1))
    return ChoiceCost(shared=_not_below_zero(one + each.times(-1)), per_unit=_not_below_zero(each))


def _cost(stage: StageCost) -> Cost:
    return Cost(
        exchanges=float(stage.exchanges),
        sent_bytes=float(max(stage.sent_bytes, stage.received_bytes)),
        compute_s=stage.compute_s,
    )


def _sum(stages: _Stages) -> Cost:
    return sum(stages.values(), Cost())


def _not_below_zero(cost: Cost) -> Cost:
    """Return a cost without negative seconds, which a difference of noisy ones may have."""
    return Cost(**{name: max(0.0, value) for name, value in vars(cost).items()})

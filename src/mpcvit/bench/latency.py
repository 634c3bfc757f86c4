"""The latency file, measured: every choice of a layer probed under a profile.

A choice is probed at two sizes. What does not grow is paid once by all who
make the choice, and what grows by each of them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.latency import ChoiceCost, Cost, LatencyTable, LayerCosts
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import names_with
from mpcvit.artifacts.provenance import Environment
from mpcvit.artifacts.record import Reveal, StageCost
from mpcvit.bench.lowered import lower_with_plan
from mpcvit.bench.networks import random_checkpoint, random_images
from mpcvit.codec import encode
from mpcvit.errors import UserError
from mpcvit.kinds.table import SCALING, Kind
from mpcvit.lowering.fold import lowered_form
from mpcvit.lowering.program import Model, SecureProgram
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.components import Component, attention_core, mlp
from mpcvit.secure.probe import measure_function
from mpcvit.secure.run import run
from mpcvit.secure.spu.stages import fit_fixed_point

Progress = Callable[[str, int, int], None]


def measure_latency(
    model: ModelConfig,
    profile: Profile,
    kinds: tuple[Kind, ...],
    progress: Progress = lambda what, done, total: None,
) -> LatencyTable:
    """Count and time every kind and form of a model's layers, and the network around them."""
    require_rounds(profile)
    architecture = Architecture.uniform(kinds[0], depth=model.depth, heads=model.heads)
    steps, done = len(kinds) + len(MlpForm) + 1, 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress("profiling", done, steps)

    attention = {}
    for kind in kinds:
        whole = Architecture.uniform(kind, depth=model.depth, heads=model.heads)
        fitted, _ = fit_fixed_point(model, whole, profile)

        def core(heads: int, kind: Kind = kind, own: ModelConfig = fitted) -> Component:
            return attention_core(kind, own, heads)

        attention[kind] = _affine(core, model.heads, profile)
        advance()
    forms = {}
    for form in MlpForm:

        def tokens(count: int, form: MlpForm = form) -> Component:
            return mlp(form, model, count)

        forms[form] = _affine(tokens, model.tokens, profile)
        advance()
    layer = LayerCosts(attention=attention, mlp=forms)
    table = make_table(
        model, profile, (layer,) * model.depth, Cost(), "networks as they are written"
    )
    whole = sum(
        stage_costs(random_checkpoint(model, architecture), profile, images=1).values(), Cost()
    )
    advance()
    layers = table.price(architecture)
    return replace(table, rest=not_below_zero(whole + layers.times(-1)))


def measure_lowered_latency(
    program: SecureProgram,
    profile: Profile,
    kinds: tuple[Kind, ...],
    progress: Progress = lambda what, done, total: None,
    forms: tuple[MlpForm, ...] = tuple(MlpForm),
) -> LatencyTable:
    """Count and time every choice as networks with a program's approximations make it.

    Heads of all kinds share the products of a layer, so what a choice costs is
    what it adds to a network of scaling heads and fused MLPs, from the second
    image on.
    """
    require_rounds(profile)
    model = program.model
    kinds = tuple(kind for kind in kinds if kind is not SCALING)
    wanted, forms = forms, tuple(own for own in forms if lowered_form(own) is not MlpForm.FUSED)
    steps, done = 1 + 2 * (len(kinds) + len(forms)), 0

    def layers_of(heads: tuple[Kind, ...], mlp: tuple[MlpForm, ...]) -> dict[str, Cost]:
        nonlocal done
        layer = LayerArchitecture(heads=heads, mlp=mlp)
        architecture = Architecture(layers=(layer,) * model.depth)
        variant = lower_with_plan(program.plan, model, architecture, program.engine)
        costs = stage_costs(variant, profile, images=LEAST_RUNS)
        done += 1
        progress("profiling", done, steps)
        return costs

    linear, fused = (SCALING,) * model.heads, (MlpForm.FUSED,) * model.tokens
    base = layers_of(linear, fused)

    def added(one: dict[str, Cost], every: dict[str, Cost], most: int) -> list[ChoiceCost]:
        """For every layer a line through what one and what all who make a choice add."""

        def beyond_base(costs: dict[str, Cost], name: str) -> Cost:
            return not_below_zero(costs[name] + base[name].times(-1))

        return [
            line_through(beyond_base(one, name), beyond_base(every, name), most)
            for name in (f"block {index}" for index in range(model.depth))
        ]

    attention = {
        kind: added(
            layers_of((kind, *linear[1:]), fused),
            layers_of((kind,) * model.heads, fused),
            model.heads,
        )
        for kind in kinds
    }
    mlps = {
        form: added(
            layers_of(linear, (form, *fused[1:])),
            layers_of(linear, (form,) * model.tokens),
            model.tokens,
        )
        for form in forms
    }
    free = ChoiceCost()
    layers = tuple(
        LayerCosts(
            attention={
                SCALING: free,
                **{kind: own[index] for kind, own in attention.items()},
            },
            mlp={form: mlps[form][index] if form in mlps else free for form in wanted},
        )
        for index in range(model.depth)
    )
    settings = program.engine.apply(profile)
    return make_table(model, settings, layers, sum(base.values(), Cost()), "lowered networks")


def require_rounds(profile: Profile) -> None:
    if not profile.protocol.counts_rounds:
        raise UserError(
            f"a latency file prices exchanges, and messages of {profile.protocol.name} are no "
            f"rounds; use a profile of {names_with(counts_rounds=True)}"
        )


def make_table(
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
    one = _cost(measure_function(make(1).function, make(1).inputs, profile).cost)
    full = make(most)
    every = _cost(measure_function(full.function, full.inputs, profile).cost)
    return line_through(one, every, most)


def line_through(one: Cost, every: Cost, most: int) -> ChoiceCost:
    if most == 1:
        return ChoiceCost(per_unit=one)
    each = (every + one.times(-1)).times(1 / (most - 1))
    return ChoiceCost(shared=not_below_zero(one + each.times(-1)), per_unit=not_below_zero(each))


def _cost(stage: StageCost) -> Cost:
    return Cost(
        exchanges=float(stage.exchanges),
        sent_bytes=float(max(stage.sent_bytes, stage.received_bytes)),
        compute_s=stage.compute_s,
    )


def stage_costs(
    model: Model, profile: Profile, *, images: int, reveal: Reveal = Reveal.LOGITS
) -> dict[str, Cost]:
    """Return the cost of every stage for the last of some images, computing for the quickest."""
    pixels = random_images(model.model, images)
    batches = run(model, pixels, profile, reveal=reveal, simulate=True).record.batches
    by_stage = zip(*(batch.stages for batch in batches), strict=True)
    return {
        stages[-1].name: replace(
            _cost(stages[-1]), compute_s=min(stage.compute_s for stage in stages)
        )
        for stages in by_stage
    }


def not_below_zero(cost: Cost) -> Cost:
    """Seconds are noisy, and a difference of two may come out negative."""
    values: dict[str, Any] = {name: max(0.0, value) for name, value in vars(cost).items()}
    return Cost(**values)

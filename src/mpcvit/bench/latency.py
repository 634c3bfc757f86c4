"""The latency file, measured: every choice of a layer probed under a profile.

A choice is probed at two sizes. What does not grow is paid once by all who
make the choice, and what grows by each of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from mpcvit.arch import Architecture, AttentionKind, MlpForm
from mpcvit.bench.networks import random_checkpoint
from mpcvit.config import ModelConfig, to_plain
from mpcvit.cost.latency import ChoiceCost, Cost, LatencyTable, LayerCosts
from mpcvit.errors import UserError
from mpcvit.profile import Profile, Protocol
from mpcvit.records import Environment
from mpcvit.run_record import StageCost
from mpcvit.runtime.components import Component, attention_core, mlp
from mpcvit.runtime.probe import probe
from mpcvit.runtime.run import run
from mpcvit.runtime.stages import fit_fixed_point

Progress = Callable[[str, int, int], None]


def measure_latency(
    model: ModelConfig,
    profile: Profile,
    kinds: tuple[AttentionKind, ...],
    progress: Progress = lambda what, done, total: None,
) -> LatencyTable:
    """Count and time every kind and form of a model's layers, and the network around them."""
    if profile.protocol is Protocol.CHEETAH:
        raise UserError(
            "a latency file prices exchanges, and Cheetah's many one-way messages are no rounds; "
            "take a profile of SEMI2K or ABY3"
        )
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

        def core(heads: int, kind: AttentionKind = kind, own: ModelConfig = fitted) -> Component:
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
    table = LatencyTable(
        source=(
            f"measured: counts and CPU seconds of {profile.protocol.value} on SPU "
            f"({profile.ring_bits}-bit ring, {profile.fraction_bits} fraction bits), "
            "network modelled"
        ),
        network=profile.network,
        heads=model.heads,
        tokens=model.tokens,
        layers=(layer,) * model.depth,
        rest=Cost(),
        details={
            "model": to_plain(model),
            "profile": to_plain(profile),
            "environment": vars(Environment.here()),
            **({"warning": profile.warning} if profile.warning else {}),
        },
    )
    whole_cost = _network(model, architecture, profile)
    advance()
    return _with_rest(table, whole_cost, architecture)


def _affine(make: Callable[[int], Component], most: int, profile: Profile) -> ChoiceCost:
    """A line through the costs of one and of all who make a choice."""
    one = _cost(probe(make(1).function, make(1).inputs, profile).cost)
    if most == 1:
        return ChoiceCost(each=one)
    full = make(most)
    every = _cost(probe(full.function, full.inputs, profile).cost)
    each = (every + one.times(-1)).times(1 / (most - 1))
    return ChoiceCost(once=_not_below_zero(one + each.times(-1)), each=_not_below_zero(each))


def _cost(stage: StageCost) -> Cost:
    return Cost(
        exchanges=float(stage.exchanges),
        sent_bytes=float(max(stage.sent_bytes, stage.received_bytes)),
        compute_s=stage.compute_s,
    )


def _network(model: ModelConfig, architecture: Architecture, profile: Profile) -> Cost:
    size = model.image_size
    image = np.zeros((1, size, size, model.channels), np.uint8)
    checkpoint = random_checkpoint(model, architecture)
    total = Cost()
    for stage in run(checkpoint, image, profile, simulate=True).record.stages:
        total += _cost(stage)
    return total


def _with_rest(table: LatencyTable, whole: Cost, architecture: Architecture) -> LatencyTable:
    from dataclasses import replace

    layers = table.price(architecture)
    return replace(table, rest=_not_below_zero(whole + layers.times(-1)))


def _not_below_zero(cost: Cost) -> Cost:
    """Seconds are noisy, and a difference of two may come out negative."""
    values: dict[str, Any] = {name: max(0.0, value) for name, value in vars(cost).items()}
    return Cost(**values)

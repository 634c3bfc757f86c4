"""One function on secret inputs, to see what it gives and what it costs."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import StageCost
from mpcvit.secure.components import Component, find_component
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.dealing.local_dealer import local_places
from mpcvit.secure.dealing.party import PartyDealing
from mpcvit.secure.memory import peak_bytes
from mpcvit.secure.parties.events import Finished, Journal, Measured, Report
from mpcvit.secure.parties.job import OwnFunction
from mpcvit.secure.parties.roles import ROLES, Role
from mpcvit.secure.parties.supervise import run_processes
from mpcvit.secure.spu.compile import CompiledStage, Program, compile_function
from mpcvit.secure.spu.engine import Engine, one_at_a_time, profile_log, run_in_threads
from mpcvit.secure.spu.link import Channel


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The output of a function, and its cost."""

    output: np.ndarray
    cost: StageCost


def measure_function(
    function: Callable[..., Any], inputs: Sequence[np.ndarray], profile: Profile
) -> Probe:
    """Run a function of arrays with the parties as threads of this process."""
    component = Component(function=function, inputs=tuple(inputs))
    has_dealer = profile.dealer is Dealer.THIRD_PARTY
    with one_at_a_time, local_places() if has_dealer else nullcontext({}) as places:
        found = run_in_threads(
            profile,
            lambda channel: _take_part(channel, component, profile, places.get(channel.role)),
        )
    return found[Role.DATA_OWNER]


def measure_in_processes(name: str, model: ModelConfig, profile: Profile) -> StageCost:
    """Run a component in processes through the profile's network."""
    owned = dict.fromkeys(ROLES[profile.protocol], OwnFunction(name=name, model=model))
    journal = Journal()
    run_processes(owned, profile, journal)
    return journal.find(Role.DATA_OWNER, Measured).cost


def measure_function_here(
    channel: Channel,
    profile: Profile,
    name: str,
    model: ModelConfig,
    report: Report,
    dealer: DealerEndpoint | None,
) -> None:
    """Take part in `measure_in_processes` as one party."""
    probe = _take_part(channel, find_component(name, model), profile, dealer)
    if probe is not None:
        report(Measured(cost=probe.cost))
    report(Finished(peak_bytes=peak_bytes()))


def _take_part(
    channel: Channel, component: Component, profile: Profile, dealer: DealerEndpoint | None
) -> Probe | None:
    """Run a function: the data owner gives every input and gets the output, with its cost."""
    profile_log()  # before the compiler first logs, to wherever SPU would have it
    inputs = {f"input.{index}": array for index, array in enumerate(component.inputs)}
    shapes = {name: array.shape for name, array in inputs.items()}
    program = _compile(component, shapes)
    (stage,) = program.stages
    dealing = None if dealer is None else PartyDealing(channel, profile, dealer)
    if dealing is not None:
        dealing.terms({1: program}, profile, {})
    engine = Engine(channel, profile, None if dealing is None else dealing.settings)
    if channel.role is Role.DATA_OWNER:
        shares, _ = engine.sharing.give(inputs)
    else:
        shares, _ = engine.sharing.take(Role.DATA_OWNER, shapes)
    for name, share in shares.items():
        engine.runtime.set_var(name, share)
    if profile.protocol.warms_up:
        engine.run(stage.executable(), "warm up")  # its keys and base transfers: on first use
    if dealing is not None:
        dealing.authorise(dealing.make_job(engine, [1]))
        dealing.await_material()
    cost = engine.run(stage.executable(), "probe")
    if dealing is not None:
        dealing.end_part()
        dealing.close()
    output, _ = engine.sharing.reveal_to(
        Role.DATA_OWNER, engine.runtime.get_var(stage.target), program.output_shape
    )
    return None if output is None else Probe(output=output, cost=cost)


def _compile(component: Component, shapes: dict[str, tuple[int, ...]]) -> Program:
    """Return a function as a network of one stage, which a dealer can be asked for."""
    *others, source = shapes  # a stage reads its source last
    stage = CompiledStage(
        name="probe",
        code=compile_function(component.function, *component.inputs).decode(),
        parameters={name: shapes[name] for name in others},
        source=source,
        target="output",
    )
    return Program(
        stages=(stage,),
        shapes={source: shapes[source]},
        output_shape=tuple(jax.eval_shape(component.function, *component.inputs).shape),
        notes=(),
        kernels=(),
    )

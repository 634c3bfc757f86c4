"""One function on secret inputs, to see what it gives and what it costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from spu import libspu

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import StageCost
from mpcvit.memory import peak_bytes
from mpcvit.secure.components import Component, find_component
from mpcvit.secure.parties.events import Finished, Journal, Measured, Report
from mpcvit.secure.parties.job import OwnFunction
from mpcvit.secure.parties.roles import ROLES, Role
from mpcvit.secure.parties.supervise import run_processes
from mpcvit.secure.simulate import one_at_a_time, run_in_threads
from mpcvit.secure.spu.compile import compile_function
from mpcvit.secure.spu.engine import Engine, profile_log
from mpcvit.secure.spu.link import Channel


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a function gave, and its cost."""

    output: np.ndarray
    cost: StageCost


def measure_function(
    function: Callable[..., Any], inputs: Sequence[np.ndarray], profile: Profile
) -> Probe:
    """Run a function of arrays with the parties as threads of this process."""
    component = Component(function=function, inputs=tuple(inputs))
    with one_at_a_time:
        found = run_in_threads(profile, lambda channel: _take_part(channel, component, profile))
    return found[Role.DATA_OWNER]


def measure_in_processes(name: str, model: ModelConfig, profile: Profile) -> StageCost:
    """Run a component in processes through the profile's network."""
    owned = dict.fromkeys(ROLES[profile.protocol], OwnFunction(name=name, model=model))
    journal = Journal()
    run_processes(owned, profile, journal)
    return journal.find(Role.DATA_OWNER, Measured).cost


def measure_function_here(
    channel: Channel, profile: Profile, name: str, model: ModelConfig, report: Report
) -> None:
    """Take part in `measure_in_processes` as one party."""
    probe = _take_part(channel, find_component(name, model), profile)
    if probe is not None:
        report(Measured(cost=probe.cost))
    report(Finished(peak_bytes=peak_bytes()))


def _take_part(channel: Channel, component: Component, profile: Profile) -> Probe | None:
    """Run a function: the data owner gives every input and gets the output, with its cost."""
    profile_log()  # before the compiler first logs, to wherever SPU would have it
    inputs = {f"input.{index}": array for index, array in enumerate(component.inputs)}
    executable = libspu.Executable(
        name="probe",
        input_names=list(inputs),
        output_names=["output"],
        code=compile_function(component.function, *component.inputs),
    )
    engine = Engine(channel, profile)
    if channel.role is Role.DATA_OWNER:
        shares, _ = engine.sharing.give(inputs)
    else:
        shapes = {name: array.shape for name, array in inputs.items()}
        shares, _ = engine.sharing.take(Role.DATA_OWNER, shapes)
    for name, share in shares.items():
        engine.runtime.set_var(name, share)
    if profile.protocol.warms_up:
        engine.run(executable, "warm up")  # its keys and base transfers are made on first use
    cost = engine.run(executable, "probe")
    shape = jax.eval_shape(component.function, *component.inputs).shape
    output, _ = engine.sharing.reveal_to(Role.DATA_OWNER, engine.runtime.get_var("output"), shape)
    return None if output is None else Probe(output=output, cost=cost)

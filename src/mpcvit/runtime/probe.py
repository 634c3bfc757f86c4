"""One function on secret inputs, to see what it gives and what it costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from spu import libspu

from mpcvit.profile import Profile
from mpcvit.run_record import StageCost
from mpcvit.runtime.compiled import compile_function
from mpcvit.runtime.link import Channel
from mpcvit.runtime.roles import Role
from mpcvit.runtime.session import Engine
from mpcvit.runtime.simulate import one_at_a_time, run_in_threads
from mpcvit.runtime.trace import profile_log


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a function gave, and its cost."""

    output: np.ndarray
    cost: StageCost


def probe(
    function: Callable[..., Any],
    inputs: Sequence[np.ndarray],
    profile: Profile,
    name: str = "probe",
) -> Probe:
    """Run a function of arrays with the parties as threads of this process."""
    profile_log()  # before the compiler first logs, to wherever SPU would have it
    names = [f"input.{index}" for index in range(len(inputs))]
    executable = libspu.Executable(
        name="probe",
        input_names=names,
        output_names=["output"],
        code=compile_function(function, *inputs),
    )
    shape = jax.eval_shape(function, *inputs).shape

    def take_part(channel: Channel) -> Probe | None:
        engine = Engine(channel, profile)
        if channel.role is Role.DATA_OWNER:
            shares, _ = engine.sharing.give(dict(zip(names, inputs, strict=True)))
        else:
            shapes = {own: array.shape for own, array in zip(names, inputs, strict=True)}
            shares, _ = engine.sharing.take(Role.DATA_OWNER, shapes)
        for own, share in shares.items():
            engine.runtime.set_var(own, share)
        cost = engine.run(executable, name)
        output, _ = engine.sharing.reveal_to(
            Role.DATA_OWNER, engine.runtime.get_var("output"), shape
        )
        return None if output is None else Probe(output=output, cost=cost)

    with one_at_a_time:
        found = run_in_threads(profile, take_part)[Role.DATA_OWNER]
    assert found is not None
    return found

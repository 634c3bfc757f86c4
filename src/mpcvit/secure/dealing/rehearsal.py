"""Rehearsal: what a program will ask of a dealer, found by running it without secrets.

Which correlated randomness SPU asks for depends on the program alone. So it is
run once, both sides as threads on made-up shares, and the script is written
down, with that of the set-up where masks of kernels are reused: into the
program when it is lowered for a dealer, else by each party when it first meets
the program. A script that came with a program is taken as it is, as nobody has
to believe it: each party's gateway holds its own SPU to it, and refuses the
first request that differs before a mask of it hides anything.
"""

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import Reveal
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.keys import make_up_public_key
from mpcvit.dealer.party.gateway import Gateway, Recorder
from mpcvit.dealer.script import Script, Scripts
from mpcvit.errors import UserError
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.card import LEAST_RUNS, ModelCard, settled
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.threads import run_in_threads
from mpcvit.secure.spu.compile import Program, compile_network
from mpcvit.secure.spu.engine import DealerSettings, Engine
from mpcvit.secure.spu.link import Channel
from mpcvit.storage import cache_folder, replacing

Progress = Callable[[str, int, int], None]

_one_at_a_time = threading.Lock()
_in_memory: dict[str, Script] = {}


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """What a session will ask for: once at its start, and for every run of a program."""

    set_up: Script  # of no steps, where no mask is reused
    inference: Script


def with_script(
    program: SecureProgram,
    profile: Profile,
    *,
    batch_size: int = 1,
    reveal: Reveal = Reveal.CLASS,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """Return a program with its scripts for a batch size, if the profile has a dealer.

    Parties that run it with these settings and this software need no rehearsal, whether
    for few images or for many.
    """
    if profile.dealer is not Dealer.THIRD_PARTY:
        return program
    progress("rehearsing", 0, 1)
    scripts, card = dict(program.public.scripts), ModelCard.of(program, reveal)
    for runs in (1, LEAST_RUNS):
        settings = settled(program.engine.apply(profile), card, runs)
        compiled = compile_network(card, settings, batch_size)
        found = scripts_of(compiled, settings)
        scripts |= _by_name(compiled, settings, found)
    progress("rehearsing", 1, 1)
    return program.changed(scripts=scripts)


def scripts_of(program: Program, profile: Profile, carried: Scripts | None = None) -> Rehearsed:
    """Return the scripts that came with a program, are stored here, or a rehearsal finds."""
    names = _names(program, profile)
    with _one_at_a_time:
        for known in (carried or {}, _in_memory):
            if all(name in known for name in names):
                return _rehearsed([known[name] for name in names])
        paths = [cache_folder() / "scripts" / f"{name}.script" for name in names]
        kept = [script for path in paths if (script := _read(path)) is not None]
        if len(kept) == len(names):
            found = _rehearsed(kept)
        else:
            found = _rehearse(program, profile)
            for path, script in zip(paths, _by_name(program, profile, found).values(), strict=True):
                _keep(path, script)
        _in_memory.update(_by_name(program, profile, found))
        return found


def _rehearse(program: Program, profile: Profile) -> Rehearsed:
    public_pem = make_up_public_key().pem

    def take_part(channel: Channel) -> Rehearsed:
        channel.counts_costs = False
        recorder = Recorder()
        with Gateway(recorder) as gateway:
            engine = Engine(
                channel, profile, DealerSettings(gateway=gateway, public_pem=public_pem)
            )
            first = program.stages[0].source
            for name, shape in {**program.parameters, first: program.input_shape}.items():
                engine.runtime.set_var(name, engine.sharing.make_up(shape))
            for kernel in program.kernels:
                recorder.expect_kernel()
                engine.use_first(kernel, program.parameters[kernel])
            set_up = recorder.take()
            for stage in program.stages:
                engine.run(stage.executable(), stage.name)
        return Rehearsed(set_up=set_up, inference=recorder.take())

    mine, theirs = run_in_threads(profile, take_part).values()
    if mine != theirs:
        raise PartyError("the program asks different things of a dealer on its two sides")
    return mine


def _names(program: Program, profile: Profile) -> list[str]:
    """Return names made of what scripts depend on: program, batch size, profile, versions.

    The set-up's depends on the kernels in place of the program, if there are any.
    """
    kernels = [program.parameters[kernel] for kernel in program.kernels]
    subjects = [*([kernels] if kernels else []), program.digest()]
    versions = [importlib.metadata.version(package) for package in ("mpcvit", "spu")]
    known = (
        json.dumps([own, profile.shared_settings(), versions], sort_keys=True) for own in subjects
    )
    return [hashlib.sha256(one.encode()).hexdigest() for one in known]


def _by_name(program: Program, profile: Profile, found: Rehearsed) -> dict[str, Script]:
    scripts = [script for script in (found.set_up, found.inference) if script.steps]
    return dict(zip(_names(program, profile), scripts, strict=True))


def _rehearsed(scripts: Sequence[Script]) -> Rehearsed:
    *set_up, inference = scripts
    return Rehearsed(set_up=set_up[0] if set_up else Script(()), inference=inference)


def _keep(path: Path, script: Script) -> None:
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(script.to_bytes())
    except UserError:
        pass  # where nothing can be kept, the next run rehearses again


def _read(path: Path) -> Script | None:
    """Return a stored script, or None if it is absent or damaged."""
    try:
        return Script.from_bytes(path.read_bytes())
    except (OSError, DealerError):
        return None

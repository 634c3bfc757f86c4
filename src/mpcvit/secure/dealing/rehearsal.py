"""Rehearsal: what a program will ask of a dealer, found by running it without secrets.

Which correlated randomness SPU asks for depends on the program alone. So it is
run once, both sides as threads on made-up shares, stages of one kind once, and
the script is written down, with that of the set-up where masks of kernels are reused: into the
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
from dataclasses import dataclass, replace
from functools import partial

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import Reveal
from mpcvit.dealer.keys import make_up_public_key
from mpcvit.dealer.party.gateway import Gateway, Recorder
from mpcvit.dealer.script import Script, Scripts, Step
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.card import LEAST_RUNS, ModelCard, settled
from mpcvit.secure.errors import PartyError
from mpcvit.secure.made_once import MadeOnce
from mpcvit.secure.made_once import Progress as StageProgress
from mpcvit.secure.spu.compile import NOISE, CompiledStage, Program, compile_network
from mpcvit.secure.spu.engine import DealerSettings, Engine, run_in_threads
from mpcvit.secure.spu.link import Channel

Progress = Callable[[str, int, int], None]

_one_at_a_time = threading.Lock()
_kept = MadeOnce("scripts")


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """The scripts of a session: for its start, and for every run of a program."""

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
    scripts, card = dict(program.public.scripts), ModelCard.of(program, reveal)
    for runs in (1, LEAST_RUNS):
        settings = settled(program.engine.apply(profile), card, runs)
        compiled = compile_network(card, settings, batch_size, partial(progress, "compiling"))
        found = scripts_of(compiled, settings, None, partial(progress, "rehearsing"))
        scripts |= _by_name(compiled, settings, found)
    return program.changed(scripts=scripts)


def scripts_of(
    program: Program,
    profile: Profile,
    carried: Scripts | None = None,
    progress: StageProgress = lambda done, total: None,
) -> Rehearsed:
    """Return the scripts that came with a program, are stored here, or a rehearsal finds."""
    names = _names(program, profile)
    if carried and all(name in carried for name in names):
        return _rehearsed([carried[name] for name in names])
    return _rehearse(program, profile, progress)


def _rehearse(program: Program, profile: Profile, progress: StageProgress) -> Rehearsed:
    """Rehearse each kind of stage once, and put the scripts of all stages together."""
    names = [_stage_name(stage, profile) for stage in program.stages]
    kinds = dict(zip(names, program.stages, strict=True))
    with _one_at_a_time:
        for done, (name, is_absent) in enumerate(_kept.each(kinds)):
            if is_absent:
                _kept.keep(name, _rehearse_stage(program, kinds[name], profile))
            progress(done + 1, len(kinds))
        found = {name: _kept.in_memory[name] for name in kinds}
    set_up: list[Step] = []
    inference: list[Step] = []
    for name in names:
        first = len(set_up)  # the number of this stage's first kernel
        for step in Script.from_bytes(found[name]).steps:
            moved = step if step.kernel is None else replace(step, kernel=step.kernel + first)
            (set_up if step.opens_kernel else inference).append(moved)
    return Rehearsed(set_up=Script(tuple(set_up)), inference=Script(tuple(inference)))


def _rehearse_stage(program: Program, stage: CompiledStage, profile: Profile) -> bytes:
    """Return the script of one stage, after the first uses of its kernels."""
    public_pem = make_up_public_key().pem
    kernels = [name for name in stage.parameters if name in program.kernels]
    shapes = program.shapes if stage.noise is None else {**program.shapes, NOISE: stage.noise}
    read = {name: shapes[name] for name in stage.read_once}

    def take_part(channel: Channel) -> Script:
        channel.counts_costs = False
        recorder = Recorder()
        with Gateway(recorder) as gateway:
            engine = Engine(
                channel, profile, DealerSettings(gateway=gateway, public_pem=public_pem)
            )
            engine.set_constants({constant.name: constant.array for constant in stage.constants})
            for name, shape in {**stage.parameters, **read}.items():
                engine.runtime.set_var(name, engine.sharing.make_up(shape))
            for kernel in kernels:
                recorder.expect_kernel()
                engine.use_first(kernel, stage.parameters[kernel])
            engine.run(stage.executable(), stage.name)
        return recorder.take()

    mine, theirs = run_in_threads(profile, take_part).values()
    if mine != theirs:
        raise PartyError("the program asks different things of a dealer on its two sides")
    return mine.to_bytes()


def _stage_name(stage: CompiledStage, profile: Profile) -> str:
    """Return a name of what the script of a stage depends on, which constants are not."""
    known = [stage.code, profile.shared_settings(), _versions()]
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _names(program: Program, profile: Profile) -> list[str]:
    """Return names made of what scripts depend on: program, batch size, profile, versions.

    The set-up's depends on the kernels in place of the program, if there are any.
    """
    kernels = [program.parameters[kernel] for kernel in program.kernels]
    subjects = [*([kernels] if kernels else []), program.digest()]
    settings = profile.shared_settings()
    known = (json.dumps([own, settings, _versions()], sort_keys=True) for own in subjects)
    return [hashlib.sha256(one.encode()).hexdigest() for one in known]


def _versions() -> list[str]:
    return [importlib.metadata.version(package) for package in ("mpcvit", "spu")]


def _by_name(program: Program, profile: Profile, found: Rehearsed) -> dict[str, Script]:
    scripts = [script for script in (found.set_up, found.inference) if script.steps]
    return dict(zip(_names(program, profile), scripts, strict=True))


def _rehearsed(scripts: Sequence[Script]) -> Rehearsed:
    *set_up, inference = scripts
    return Rehearsed(set_up=set_up[0] if set_up else Script(()), inference=inference)

"""Rehearsal: what a program will ask of a dealer, found by running it without secrets.

Which correlated randomness SPU asks for depends on the program alone. So it is
run once, both sides as threads on made-up shares, and the script is written
down: into the program when it is lowered for a dealer, else by each party when
it first meets the program. A script that came with a program is taken as it
is, as nobody has to believe it: each party's gateway holds its own SPU to it,
and refuses the first request that differs before a mask of it hides anything.
"""

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mpcvit.data.cache import default_folder
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.gateway import Gateway, Recorder
from mpcvit.dealer.keys import make_up_public_key
from mpcvit.dealer.script import Script, Scripts
from mpcvit.errors import UserError
from mpcvit.lowering.program import SecureProgram
from mpcvit.profile import Dealer, Profile
from mpcvit.run_record import Reveal
from mpcvit.runtime.card import ModelCard
from mpcvit.runtime.compiled import Program, compile_network
from mpcvit.runtime.desk import Desk
from mpcvit.runtime.engine import Engine
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.link import Channel
from mpcvit.runtime.threads import run_in_threads
from mpcvit.storage import replacing

Progress = Callable[[str, int, int], None]

_one_at_a_time = threading.Lock()
_in_memory: dict[str, Script] = {}


def with_script(
    program: SecureProgram,
    profile: Profile,
    *,
    batch_size: int = 1,
    reveal: Reveal = Reveal.CLASS,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """A program that carries its script for so many images at a time, if the profile has a dealer.

    Whoever runs it with these settings and this software needs no rehearsal.
    """
    if profile.dealer is not Dealer.THIRD_PARTY:
        return program
    progress("rehearsing", 0, 1)
    settings = program.engine.apply(profile)
    compiled = compile_network(ModelCard.of(program, reveal), settings, batch_size)
    script = script_of(compiled, settings)
    progress("rehearsing", 1, 1)
    return replace(program, scripts={**program.scripts, _name(compiled, settings): script})


def script_of(program: Program, profile: Profile, carried: Scripts | None = None) -> Script:
    """The script that came with a program, that is kept here, or that a rehearsal finds."""
    name = _name(program, profile)
    if carried and name in carried:
        return carried[name]
    with _one_at_a_time:
        if name not in _in_memory:
            path = default_folder() / "scripts" / f"{name}.script"
            _in_memory[name] = _read(path) or _keep(path, _rehearse(program, profile))
        return _in_memory[name]


def _rehearse(program: Program, profile: Profile) -> Script:
    public_pem = make_up_public_key().pem

    def take_part(channel: Channel) -> Script:
        channel.counts_costs = False
        recorder = Recorder()
        with Gateway(recorder) as gateway:
            engine = Engine(channel, profile, Desk(gateway=gateway, public_pem=public_pem))
            first = program.stages[0].source
            for name, shape in {**program.parameters, first: program.input_shape}.items():
                engine.runtime.set_var(name, engine.sharing.make_up(shape))
            for stage in program.stages:
                engine.run(stage.executable(), stage.name)
        return recorder.take()

    mine, theirs = run_in_threads(profile, take_part).values()
    if mine != theirs:
        raise PartyError("the program asks different things of a dealer on its two sides")
    return mine


def _name(program: Program, profile: Profile) -> str:
    """What a script depends on: the program for a batch size, the profile, versions."""
    versions = [importlib.metadata.version(package) for package in ("mpcvit", "spu")]
    known = json.dumps([program.digest(), profile.agreed(), versions], sort_keys=True)
    return hashlib.sha256(known.encode()).hexdigest()


def _keep(path: Path, script: Script) -> Script:
    try:
        with replacing(path) as temporary:
            temporary.write_bytes(script.to_bytes())
    except UserError:
        pass  # where nothing can be kept, the next run rehearses again
    return script


def _read(path: Path) -> Script | None:
    """What was kept, unless it is absent or damaged."""
    try:
        return Script.from_bytes(path.read_bytes())
    except (OSError, DealerError):
        return None

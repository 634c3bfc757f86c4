"""Rehearsal: what a program will ask of a dealer, found by running it without secrets.

Which correlated randomness SPU asks for depends on the program alone. So each
party runs it once by itself, both sides as threads on made-up shares, and keeps
the script. Neither has to believe the other's.
"""

import hashlib
import importlib.metadata
import json
import threading
from pathlib import Path

from mpcvit.data.cache import default_folder
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.gateway import Gateway, Recorder
from mpcvit.dealer.script import Script
from mpcvit.errors import UserError
from mpcvit.profile import Profile
from mpcvit.runtime.compiled import Program
from mpcvit.runtime.desk import Desk
from mpcvit.runtime.engine import Engine
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.link import Channel
from mpcvit.runtime.threads import run_in_threads
from mpcvit.storage import replacing

_one_at_a_time = threading.Lock()
_in_memory: dict[str, Script] = {}


def script_of(program: Program, profile: Profile, public_pem: str) -> Script:
    """A program's script, from where it is kept or from a rehearsal."""
    key = _key(program, profile)
    with _one_at_a_time:
        if key not in _in_memory:
            path = default_folder() / "scripts" / f"{key}.script"
            _in_memory[key] = _read(path) or _keep(path, _rehearse(program, profile, public_pem))
        return _in_memory[key]


def _rehearse(program: Program, profile: Profile, public_pem: str) -> Script:
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


def _key(program: Program, profile: Profile) -> str:
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

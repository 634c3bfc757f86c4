"""Parties that die, stall or lose their line in the middle of a layer."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

import mpcvit
from mpcvit.artifacts.profile import Limits, NetworkLink, load_profile
from mpcvit.errors import UserError
from mpcvit.secure.parties.job import OwnNothing
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.parties.supervise import PartyProcess
from tests.marks import mostly_long
from tests.two_party.processes import children, working_below

# so slow that every layer takes seconds; a busy machine may take its time to get there
SLOW = replace(
    load_profile("semi2k"),
    network=NetworkLink(round_trip_ms=200.0),
    limits=Limits(connect_s=120.0, silence_s=120.0),
)
IMPATIENT = replace(SLOW, limits=Limits(connect_s=120.0, silence_s=3.0))


def strike_within_a_layer(strike):
    """A progress callback that strikes once, in the middle of the first block."""
    struck = []

    def progress(what, done, total):
        if what == "running" and done == 2 and not struck:
            struck.append(True)
            threading.Timer(0.5, strike).start()

    return progress


def fails(checkpoint, pixels, strike, expected, profile):
    """Expect a sentence, long before 120 s are over."""
    started = []

    def timed():
        started.append(time.monotonic())
        strike()

    with pytest.raises(UserError, match=expected) as error:
        mpcvit.run(
            checkpoint, pixels[:1], profile, insecure=True, progress=strike_within_a_layer(timed)
        )
    assert time.monotonic() - started[0] < 60
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("role", mostly_long(["model_owner", "data_owner"], "model_owner"))
def test_a_killed_party(checkpoint, pixels, nobody_left, role):
    def kill():
        os.kill(children("mpcvit.secure.parties.party")[role], signal.SIGKILL)

    name = role.replace("_", " ")
    fails(
        checkpoint,
        pixels,
        kill,
        f"the {name}'s process ended unexpectedly after embedding.*killed by SIGKILL",
        SLOW,
    )


def test_a_stalled_party(checkpoint, pixels, nobody_left):
    def stall():
        os.kill(children("mpcvit.secure.parties.party")["model_owner"], signal.SIGSTOP)

    fails(checkpoint, pixels, stall, "sent nothing for 3 s", IMPATIENT)


def test_a_cut_line(checkpoint, pixels, nobody_left):
    def cut():
        (relay,) = children("mpcvit.secure.parties.wan").values()
        os.kill(relay, signal.SIGKILL)

    expected = r"sent nothing for 3 s|connection to its peer was lost"
    fails(checkpoint, pixels, cut, expected, IMPATIENT)


def test_a_party_whose_supervisor_is_gone_before_it_is_ready_leaves_nothing(tmp_path):
    folder = tmp_path / "party"
    folder.mkdir()
    with PartyProcess(Role.HELPER, OwnNothing(), folder) as party:
        party.control.shutdown(socket.SHUT_RDWR)
        assert party.process.wait(60) == 1
    assert not folder.exists()


def test_parties_end_with_their_supervisor(tmp_path, checkpoint, pixels):
    """Even if it is killed and cannot clean up."""
    import numpy as np

    checkpoint.save(tmp_path / "model.safetensors")
    np.save(tmp_path / "pixels.npy", pixels)
    code = (
        "import sys, numpy as np, mpcvit\n"
        "def progress(what, done, total):\n"
        "    print(what, flush=True)\n"
        "settings = dict(profile='semi2k-wan', insecure=True, progress=progress)\n"
        "mpcvit.run(sys.argv[1], np.load(sys.argv[2]), **settings)\n"
    )
    supervisor = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "model.safetensors", tmp_path / "pixels.npy"],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert supervisor.stdout is not None
    with supervisor.stdout:
        assert any(line == "running\n" for line in supervisor.stdout)
        parties = working_below(tmp_path)
        supervisor.kill()
        supervisor.wait()
    assert len(parties) == 2
    deadline = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{party}") for party in parties):
        assert time.monotonic() < deadline, "a party outlived its supervisor"
        time.sleep(0.05)

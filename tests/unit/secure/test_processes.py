import socket
from types import SimpleNamespace

import pytest

from mpcvit.artifacts.profile import Limits, Profile
from mpcvit.artifacts.protocols import PROTOCOLS
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.events import Done, Journal, to_line
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.parties.supervise import PartyProcess, watch

HASTY = Profile(protocol=PROTOCOLS["CHEETAH"], limits=Limits(connect_s=0.1, silence_s=0.1))


def test_a_watch_ends_when_it_is_enough_although_a_party_still_waits():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        party = SimpleNamespace(role=Role.DATA_OWNER, control=ours)
        watch([party], HASTY, Journal(), is_enough=lambda: True)
        with pytest.raises(PartyError, match="no party made progress"):
            watch([party], HASTY, Journal())


def fail():
    raise PartyError("the peer is gone")


def test_a_party_that_is_done_makes_the_watch_succeed_whatever_happens_next():
    """Its last event, the end of its line and the peer's leaving may come together."""
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall(to_line(Done()))
        theirs.close()
        party = PartyProcess.__new__(PartyProcess)
        party.role, party.control, party._unread = Role.DATA_OWNER, ours, b""
        journal = Journal()
        watch([party], HASTY, journal, check=fail)
        assert journal.knows(Role.DATA_OWNER, Done)


def test_a_line_that_ends_when_it_is_enough_is_no_failure():
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        party = PartyProcess.__new__(PartyProcess)
        party.role, party.control, party._unread = Role.DATA_OWNER, ours, b""
        enough = iter([False, True, True])
        watch([party], HASTY, Journal(), is_enough=lambda: next(enough))

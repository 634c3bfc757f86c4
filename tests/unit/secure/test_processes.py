import socket
from types import SimpleNamespace

import pytest

from mpcvit.artifacts.profile import Limits, Profile
from mpcvit.artifacts.protocols import PROTOCOLS
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.events import Journal
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.parties.supervise import watch

HASTY = Profile(protocol=PROTOCOLS["CHEETAH"], limits=Limits(connect_s=0.1, silence_s=0.1))


def test_a_watch_ends_when_it_is_enough_although_a_party_still_waits():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        party = SimpleNamespace(role=Role.DATA_OWNER, control=ours)
        watch([party], HASTY, Journal(), is_enough=lambda: True)
        with pytest.raises(PartyError, match="no party made progress"):
            watch([party], HASTY, Journal())

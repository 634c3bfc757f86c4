"""What the server decides when a client's turn has come, without a model and without SPU."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.hosts.peer import CLIENT, Peer, write_allowed
from mpcvit.secure.parties.events import Journal
from mpcvit.secure.service import server as module
from mpcvit.secure.service.messages import Hello, Verdict, read_message
from mpcvit.secure.service.metrics import ServerMetrics
from mpcvit.secure.service.pool import Pool
from mpcvit.secure.service.quota import open_state
from mpcvit.secure.service.server import ServeLimits, Server
from mpcvit.secure.service.visit import Visitor

PEER = Peer(role=CLIENT, name="hospital", fingerprint="a" * 64)
OTHER = Peer(role=CLIENT, name="other", fingerprint="b" * 64)
HELLO = Hello(terms={}, images=3, batch_size=1)


@pytest.fixture
def allowed(tmp_path):
    write_allowed(tmp_path / "allowed.txt", {PEER.fingerprint: PEER.name})
    return tmp_path / "allowed.txt"


@pytest.fixture
def server(allowed, tmp_path):
    state = open_state(tmp_path / "state.sqlite")
    yield Server(
        own=None,
        profile=load_profile("cheetah"),
        terms={},
        engine=None,
        credentials=SimpleNamespace(allowed=allowed),
        limits=ServeLimits(max_images_per_day=5, queue=2),
        state=state,
        advertise="",
        metrics=ServerMetrics(),
        max_sessions=None,
        stop=threading.Event(),
        log=lambda line: None,
        note=lambda sentence: None,
    )
    state.close()


class Guest:
    """A client that keeps what it is told."""

    def __init__(self, peer):
        self.peer, self.writer, self.told = peer, self, b""

    def write(self, content):
        self.told += content


@pytest.fixture
def sessions(monkeypatch):
    """Those that began."""
    begun = []

    class Session(SimpleNamespace):
        name = "0" * 32

        async def run(self, *_):
            begun.append(self.fingerprint)
            return "done"

    monkeypatch.setattr(module, "ServerSession", Session)
    return begun


def begin(server, guest):
    """Let the turn of a client come; return how its visit ended, and what it was told."""

    async def main():
        visitor = Visitor(peer="192.0.2.1:5")
        party = SimpleNamespace(journal=Journal())
        server._pool = SimpleNamespace(watch=None)
        ended = await server._run_session(guest, HELLO, visitor, None, party)
        reader = asyncio.StreamReader()
        reader.feed_data(guest.told)
        return ended, await read_message(reader) if guest.told else None

    return asyncio.run(main())


def test_who_was_revoked_in_the_queue_gets_no_session(server, sessions, allowed):
    assert begin(server, Guest(PEER)) == ("done", None)
    write_allowed(allowed, {OTHER.fingerprint: OTHER.name})
    server._refresh_allowed()  # as SIGHUP does, while the client waits: no session to end yet
    used = server._state.used(PEER.fingerprint)
    ended, told = begin(server, Guest(PEER))
    assert ended == "refused: the certificate 'hospital' is not on the list of allowed clients"
    assert told.verdict is Verdict.REFUSED
    assert sessions == [PEER.fingerprint]
    assert server._state.used(PEER.fingerprint) == used  # what was reserved is given back
    assert not server._sessions


def test_who_is_put_off_is_told_when_to_come_back(server, monkeypatch):
    """The last one of a client that fills the queue makes room, and leaves no trace."""

    entered = []

    class Control(SimpleNamespace):
        def start(self):
            entered.append(self)

        def send(self, message):
            pass

        async def stop(self):
            pass

        async def wait_until_over(self):
            await asyncio.Event().wait()

    monkeypatch.setattr(module, "ControlConnection", lambda *_: Control())
    monkeypatch.setattr(server, "_refusal", lambda hello: "")

    async def main():
        server._pool = pool = Pool(1, lambda: None, lambda note: None)  # no place is open
        guests = [Guest(peer) for peer in (PEER, PEER, OTHER, OTHER)]
        visits = []
        for guest in guests:
            visit = server._serve(guest, HELLO, Visitor(peer="192.0.2.1:5"))
            before = len(entered)
            visits.append(asyncio.ensure_future(visit))
            while len(entered) == before and not visits[-1].done():
                await asyncio.sleep(0.001)
        while not visits[1].done():
            await asyncio.sleep(0.001)
        done = [visit.done() and visit.result() for visit in visits]
        for visit in visits:
            visit.cancel()
        await asyncio.gather(*visits, return_exceptions=True)
        assert pool.waiting == 0
        reader = asyncio.StreamReader()
        reader.feed_data(guests[1].told)
        return done, await read_message(reader)

    done, reply = asyncio.run(asyncio.wait_for(main(), 60))
    full = "put off: the queue is full"
    assert done == [False, full, False, full]
    assert (reply.verdict, reply.retry_s) == (Verdict.BUSY, 30.0)

"""One session on the server: what the client is told at its end, and which connections are used."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.errors import UserError
from mpcvit.hosts.door import Stream
from mpcvit.secure.parties.events import Journal
from mpcvit.secure.service.messages import START, Answer, Hello, Verdict, Way
from mpcvit.secure.service.session import ServerSession

HELLO = Hello(terms={}, images=1, batch_size=1)


class ControlConnection:
    """Keeps what the client would hear."""

    is_lost = peer_is_done = False

    def __init__(self):
        self.sent, self.ends = [], []

    def send(self, message):
        self.sent.append(message)

    async def end(self, reason=""):
        self.ends.append(reason)

    def check(self):
        pass


def session_in(folder, meet=lambda *_, **__: None):
    party = SimpleNamespace(folder=folder, journal=Journal(), process=SimpleNamespace(connect=meet))
    return ServerSession(
        fingerprint="f" * 64,
        party=party,
        profile=load_profile("cheetah"),
        control=ControlConnection(),
        stop=threading.Event(),
    )


def run_with(folder, work, **options):
    """Run a session whose blocking part is `work`; return it, and how it ended."""

    async def main():
        session = session_in(folder, **options)
        welcome = Answer(verdict=Verdict.WELCOME, session=session.name)
        try:
            return session, await session.run(HELLO, welcome, work)
        except (OSError, asyncio.CancelledError) as error:
            return session, error

    return asyncio.run(main())


async def done(watch):
    pass


def failing(error):
    async def work(watch):
        raise error

    return work


def test_a_session_that_ends_well_says_so(tmp_path):
    session, ended = run_with(tmp_path, done)
    assert ended == "done"
    assert session.control.ends == [""]
    assert session.control.sent[0].session == session.name


def test_a_party_that_fails_is_named_at_both_ends(tmp_path):
    session, ended = run_with(tmp_path, failing(UserError("the model owner's process died")))
    assert ended == "the model owner's process died"
    assert session.control.ends == [ended]


def test_a_client_that_has_its_answers_makes_the_session_well_ended(tmp_path):
    """Its process is gone then, and may bring down the party that still waits for a receipt."""

    async def fail_after_farewell(watch):
        session_of_test.control.peer_is_done = True
        raise UserError("the model owner's process ended unexpectedly")

    async def main():
        nonlocal session_of_test
        session_of_test = session_in(tmp_path)
        welcome = Answer(verdict=Verdict.WELCOME, session=session_of_test.name)
        return await session_of_test.run(HELLO, welcome, fail_after_farewell)

    session_of_test = None
    assert asyncio.run(main()) == "done"
    assert session_of_test.control.ends == [""]


def fail_to_meet(*_, **__):
    raise OSError("no space left on device")


@pytest.mark.parametrize(
    ("work", "options"),
    [
        (failing(OSError("no space left on device")), {}),
        (failing(asyncio.CancelledError()), {}),
        (done, {"meet": fail_to_meet}),
    ],
)
def test_a_session_that_breaks_off_is_never_called_well_ended(tmp_path, work, options):
    session, ended = run_with(tmp_path, work, **options)
    assert isinstance(ended, BaseException)
    (reason,) = session.control.ends
    assert reason


class Writer:
    def __init__(self):
        self.written, self.is_open = b"", True

    def write(self, content):
        self.written += content

    def is_closing(self):
        return not self.is_open


def test_the_way_back_takes_waiting_connections_that_are_still_open(tmp_path, monkeypatch):
    async def main():
        session = session_in(tmp_path)
        streams = [Stream(reader=asyncio.StreamReader(), writer=Writer()) for _ in range(3)]
        streams[0].reader.feed_eof()
        streams[1].writer.is_open = False
        for stream in streams:
            session._parked.put_nowait(stream)
        assert await session._reach() is streams[2]
        assert [stream.writer.written for stream in streams] == [b"", b"", START]
        monkeypatch.setattr("mpcvit.secure.service.session._WAIT_S", 0.05)
        with pytest.raises(UserError, match="opened no connection for the way back"):
            await session._reach()

    asyncio.run(main())


def test_a_waiting_connection_stays_until_the_session_is_over(tmp_path):
    async def main():
        session = session_in(tmp_path)
        closed = asyncio.Event()
        guest = SimpleNamespace(writer=SimpleNamespace(wait_closed=closed.wait))
        joined = asyncio.ensure_future(session.join(guest, Way.BACK))
        await asyncio.sleep(0.01)
        assert not joined.done()
        session._over.set()
        await asyncio.wait_for(joined, 1)

    asyncio.run(main())


def test_violations_revocation_and_a_stop_end_the_watch(tmp_path):
    async def main():
        session = session_in(tmp_path)
        session._check()
        for change, sentence in (
            (lambda: session._fail("the peer sent nonsense"), "the peer sent nonsense"),
            (lambda: setattr(session, "is_revoked", True), "certificate was revoked"),
            (session.stop.set, "the server was stopped"),
        ):
            change()
            with pytest.raises(UserError, match=sentence):
                session._check()

    asyncio.run(main())

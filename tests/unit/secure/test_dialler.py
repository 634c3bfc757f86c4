"""The client's line to a server: whom it believes, and what it says when there is no session."""

import asyncio
import contextlib
import shutil
import socket
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.profile import load_profile
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.parties.roles import free_addresses
from mpcvit.secure.parties.sockets import listen, unix_address
from mpcvit.secure.service import control, dialler
from mpcvit.secure.service.dialler import ServerLine
from mpcvit.secure.service.frames import FrameChecker
from mpcvit.secure.service.messages import (
    START,
    Answer,
    Hello,
    Join,
    Verdict,
    Way,
    Word,
    encode,
    read_first,
)
from tests.frames import frame, key_of, push, request_meta

PATIENCE_S = 60.0  # of tests, on a busy machine
SESSION = "0123456789abcdef" * 2
HELLO = Hello(terms=agreement_of(load_profile("semi2k")), images=1, batch_size=1)
WELCOME = Answer(
    verdict=Verdict.WELCOME, session=SESSION, engine=choose_engine(load_profile("semi2k"))
)
BUSY = Answer(verdict=Verdict.BUSY)


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    """Return folders of a pair, of another pair, of a past one, and of another host's name."""
    out, past = tmp_path_factory.mktemp("certs"), datetime.now(timezone.utc) - timedelta(days=9)
    make_certificates(out / "pair", names=("server", "client", "second"))
    make_certificates(out / "foreign")
    make_certificates(out / "past", days=8, now=past)
    make_certificates(out / "elsewhere", hosts=["model.example.org"])
    return out


class Server:
    """Answers each hello with the next of its messages, and keeps what clients say first."""

    def __init__(self, folder, *answers, joined=None):
        self._context = Credentials(folder=folder).listening_context()
        self._answers, self._joined = list(answers), joined
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.firsts, self.heard = [], bytearray()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self._writers = []

    async def _run(self):
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # refused handshakes
        server = await asyncio.start_server(self._take, sock=self._listener, ssl=self._context)
        while not self._stop.is_set():
            await asyncio.sleep(0.01)
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.02)

    async def _take(self, reader, writer):
        self._writers.append(writer)
        with contextlib.suppress(OSError, EOFError):
            first = await read_first(reader)
            self.firsts.append(first)
            if isinstance(first, Join):
                await self._joined(first, reader, writer)
                return
            answer = self._answers.pop(0)
            for message in answer if isinstance(answer, list) else [answer]:
                writer.write(message if isinstance(message, bytes) else encode(message))
            if answer == b"":
                writer.close()
            while piece := await reader.read(1000):
                self.heard += piece

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(timeout=PATIENCE_S)

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, self.firsts
            time.sleep(0.01)


def line_to(address, folder, wait_s=20.0, connect_s=5.0, waiting=lambda place: None):
    return ServerLine(
        address, Credentials(folder=folder), connect_s=connect_s, wait_s=wait_s, waiting=waiting
    )


def refused(server, folder, match, **options):
    """Expect that no session is opened, for a reason in one line."""
    address = server if isinstance(server, str) else server.address
    with (
        pytest.raises(PartyError, match=match) as error,
        line_to(address, folder, **options) as line,
    ):
        line.open(HELLO)
    assert "\n" not in str(error.value)


def test_a_welcome_opens_a_session_that_both_ends_end_well(certs):
    pair = certs / "pair"
    farewell = Word(is_end=True)
    with (
        Server(pair / "server", [WELCOME, farewell]) as server,
        line_to(server.address, pair / "client") as line,
    ):
        assert line.open(HELLO) == WELCOME
        line.check()
        line.end()
        assert line.server_is_done
        assert server.firsts == [HELLO]
        server.wait_for(lambda: server.heard)
        assert encode(farewell) in server.heard


def test_a_knock_shows_who_answers_and_asks_nothing(certs):
    pair = certs / "pair"
    with Server(pair / "server") as server:
        with line_to(server.address, pair / "client") as line:
            line.knock()
        foreign = line_to(server.address, certs / "foreign" / "client")
        with pytest.raises(PartyError, match="is not accepted"), foreign as line:
            line.knock()
    assert server.firsts == []
    nobody = line_to(free_addresses(1)[0], pair / "client")
    with pytest.raises(PartyError, match="nobody listens"), nobody as line:
        line.knock()


def test_places_in_the_queue_are_passed_on(certs):
    places = []
    messages = [Answer(verdict=Verdict.WAITING, place=place) for place in (3, 2, 1)]
    with (
        Server(certs / "pair/server", [*messages, Word(), WELCOME]) as server,
        line_to(server.address, certs / "pair/client", waiting=places.append) as line,
    ):
        assert line.open(HELLO) == WELCOME
    assert places == [3, 2, 1]


def test_one_that_is_sent_away_comes_back_when_it_may(certs):
    with (
        Server(certs / "pair/server", BUSY, BUSY, WELCOME) as server,
        line_to(server.address, certs / "pair/client") as line,
    ):
        assert line.open(HELLO) == WELCOME
        assert len(server.firsts) == 3
    later = Answer(verdict=Verdict.BUSY, retry_s=30)
    with Server(certs / "pair/server", later) as server:
        refused(server, certs / "pair/client", "its queue is full; try again in 30 s", wait_s=5)


def test_waiting_ends_after_the_time_that_the_client_has(certs):
    waiting = Answer(verdict=Verdict.WAITING, place=4)
    with Server(certs / "pair/server", waiting) as server:
        refused(server, certs / "pair/client", "within 0 s; place 4 in the queue", wait_s=0.0)


def test_a_refusal_is_passed_on(certs):
    answer = Answer(verdict=Verdict.REFUSED, reason="the parties differ in x")
    with Server(certs / "pair/server", answer) as server:
        refused(server, certs / "pair/client", "refuses: the parties differ in x")


@pytest.mark.parametrize(
    ("theirs", "own", "match"),
    [
        (
            "foreign/server",
            "pair/client",
            "certificate of localhost.*is not accepted.*; another authority",
        ),
        ("past/server", "past/client", "not accepted: certificate has expired; compare the clocks"),
        (
            "elsewhere/server",
            "elsewhere/client",
            "not accepted: Hostname mismatch.*; use a name that it has",
        ),
        ("pair/second", "pair/client", "not accepted"),
        ("pair/server", "mixed", "hung up without an answer|does not accept"),
        ("pair/server", "unlisted", r"not on the list of servers in .*: SHA-256 [0-9a-f]{64}"),
    ],
)
def test_the_wrong_certificate(certs, tmp_path, theirs, own, match):
    folder = certs / own
    if own in ("mixed", "unlisted"):  # trusts the right authority
        source = "foreign" if own == "mixed" else "pair"
        folder = shutil.copytree(certs / source / "client", tmp_path / "client")
        shutil.copy(certs / "pair/client/ca.pem", folder)
        (folder / "allowed.txt").write_text("")
        if own == "mixed":
            shutil.copy(certs / "pair/client/allowed.txt", folder)
    with Server(certs / theirs, WELCOME) as server:
        refused(server, folder, match)
        assert server.firsts == []


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no message of mpcvit"),
        (b"\0\0\0\2{}", "another version"),
        (b"\0\0\0\2[]", "no message of mpcvit"),
        (encode(WELCOME).replace(SESSION.encode(), b"x" * len(SESSION)), "cannot be understood"),
        (b"", "hung up without an answer"),
    ],
    ids=range(5),
)
def test_a_server_of_another_kind(certs, content, match):
    with Server(certs / "pair/server", content) as server:
        refused(server, certs / "pair/client", match)


def test_a_server_without_tls(certs):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"localhost:{listener.getsockname()[1]}"
        refused(address, certs / "pair/client", "or no TLS: wrong version number")
        thread.join()


def test_silence_is_not_endless(certs, monkeypatch):
    monkeypatch.setattr(dialler, "SILENCE_S", 0.2)
    with Server(certs / "pair/server", [Word()]) as server:
        refused(server, certs / "pair/client", "said nothing for 0.2 s")
    with socket.create_server(("127.0.0.1", 0)) as listener:  # does not even shake hands
        address = f"localhost:{listener.getsockname()[1]}"
        refused(address, certs / "pair/client", r"no answer \(tried for 0.5 s\)", connect_s=0.5)


def test_connections_of_a_session_that_are_refused_end_it_at_once(certs, tmp_path, monkeypatch):
    """Behind a router, the address that a server advertises may lead nowhere."""
    monkeypatch.setattr(dialler, "_ATTEMPT_S", 3600.0)  # so that it is not tried for a while
    (nowhere,) = free_addresses(1)
    elsewhere = Answer(verdict=Verdict.WELCOME, session=SESSION, address=nowhere)
    with (
        Server(certs / "pair/server", elsewhere) as server,
        line_to(server.address, certs / "pair/client", connect_s=3600.0) as line,
    ):
        line.open(HELLO)
        with carry(line, tmp_path):
            expected = f"cannot open the session's connections to {nowhere}: .*refused"
            with pytest.raises(PartyError, match=expected):
                check_until_refused(line)


def test_nobody_there(certs):
    (address,) = free_addresses(1)
    refused(address, certs / "pair/client", f"nobody listens at {address}; is `mpcvit serve`")


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ([Word(is_end=True, reason="the model's party died")], "the model's party died"),
        ([b"\0\0\0\2[]"], "sent what cannot be understood"),
        ([HELLO], "sent what cannot be understood"),
    ],
)
def test_a_server_that_fails_ends_the_session(certs, monkeypatch, messages, match):
    monkeypatch.setattr(control, "_GRACE_S", 0.0)
    with (
        Server(certs / "pair/server", [WELCOME, *messages]) as server,
        line_to(server.address, certs / "pair/client") as line,
    ):
        line.open(HELLO)
        with pytest.raises(PartyError, match=match):
            check_until_refused(line)
        assert not line.server_is_done


def check_until_refused(line):
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        line.check()
        time.sleep(0.01)


def test_a_server_that_vanishes_ends_the_session(certs, monkeypatch):
    monkeypatch.setattr(control, "_GRACE_S", 0.0)
    with Server(certs / "pair/server", WELCOME) as server:
        line = line_to(server.address, certs / "pair/client").__enter__()
        line.open(HELLO)
        line.check()
    with pytest.raises(PartyError, match=f"at {server.address} broke off without a word"):
        check_until_refused(line)
    line.__exit__(None, None, None)


MESSAGE = frame(request_meta(), push(key_of(1, SESSION), b"v"))


async def send_message(join, reader, writer):
    """Use a waiting connection for a message of the server's SPU; leave the others waiting."""
    if join.way is Way.BACK:
        writer.write(START + MESSAGE)
    await reader.read()


def carry(line, folder):
    """Connect a line with sockets that stand for the local SPU; return what it listens on."""
    own = listen(unix_address(folder / "own.sock"))
    checker = FrameChecker(peer_rank=0, session=SESSION)
    line.carry(unix_address(folder / "own.sock"), unix_address(folder / "peer.sock"), checker)
    return own


def test_connections_wait_for_the_servers_spu_and_are_replaced(certs, tmp_path):
    used = []

    async def join(join, reader, writer):
        used.append(join)
        if len(used) == 1:
            await send_message(join, reader, writer)
        else:
            await reader.read()

    with (
        Server(certs / "pair/server", WELCOME, joined=join) as server,
        line_to(server.address, certs / "pair/client") as line,
    ):
        line.open(HELLO)
        with carry(line, tmp_path) as own:
            taken, _ = own.accept()
            with taken:
                assert taken.recv(1000) == MESSAGE
                server.wait_for(lambda: len(used) == 3)  # two wait again
                time.sleep(0.05)
        assert used == [Join(session=SESSION, way=Way.BACK)] * 3
        line.check()


def test_another_server_at_the_advertised_address_is_not_believed(certs, tmp_path):
    """It is allowed, but it is not the one that opened the session."""
    folder = shutil.copytree(certs / "pair/client", tmp_path / "client")
    make_certificates(tmp_path / "other")
    with (folder / "ca.pem").open("ab") as file:
        file.write((tmp_path / "other/server/ca.pem").read_bytes())
    with (folder / "allowed.txt").open("a") as file:
        file.write((tmp_path / "other/client/allowed.txt").read_text())
    shutil.copy(certs / "pair/server/ca.pem", tmp_path / "other/server/ca.pem")
    with Server(tmp_path / "other/server", joined=send_message) as other:
        moved = Answer(verdict=Verdict.WELCOME, session=SESSION, address=other.address)
        with (
            Server(certs / "pair/server", moved) as server,
            line_to(server.address, folder) as line,
        ):
            line.open(HELLO)
            with carry(line, tmp_path):
                time.sleep(0.3)
        assert other.firsts == []


def test_a_session_that_is_lost_is_not_joined_again(certs, tmp_path, monkeypatch):
    """A server that was started again would log each attempt as a stranger's."""
    monkeypatch.setattr(dialler, "_RETRY_S", 0.01)
    used = []

    async def vanish(join, reader, writer):
        used.append(join)
        server._writers[0].transport.abort()  # the control connection
        writer.transport.abort()

    with (
        Server(certs / "pair/server", WELCOME, joined=vanish) as server,
        line_to(server.address, certs / "pair/client") as line,
    ):
        line.open(HELLO)
        with carry(line, tmp_path):
            server.wait_for(lambda: used)
            time.sleep(0.5)
    assert len(used) < 8  # of about fifty attempts

"""The first words between two hosts: who is let in, and what is said to the others."""

import contextlib
import json
import re
import socket
import struct
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

from mpcvit.lowering.engine import choose_engine
from mpcvit.profile import load_profile
from mpcvit.runtime.certificates import make_certificates, roles_named
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.rendezvous import Answer, Hello, Verdict, Watchdog, accept, dial
from mpcvit.runtime.roles import free_addresses
from mpcvit.runtime.terms import terms_of
from mpcvit.runtime.tls import Credentials

HELLO = Hello(terms=terms_of(load_profile("semi2k")), link_port=4321)
LONG_AGO = datetime.now(timezone.utc) - timedelta(days=9)
WELCOME = Answer(
    verdict=Verdict.WELCOME,
    link_port=1234,
    session="0123456789abcdef" * 2,
    engine=choose_engine(load_profile("semi2k")),
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Folders of a pair, of another pair, and of one whose time is over."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder / "pair")
    make_certificates(folder / "foreign")
    make_certificates(folder / "expired", days=8, now=LONG_AGO)
    return folder


def credentials(folder):
    return Credentials(folder=folder)


class Server:
    """Hears one client out in a thread, and answers it."""

    def __init__(self, folder=None, answers=(WELCOME,), within_s=5.0):
        self._context = folder and credentials(folder).listening_context()
        self._answers, self._within_s = answers, within_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._listener.getsockname()[1]}"
        self.hellos, self.failures, self.lines = [], [], []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        for answer in self._answers:
            connection, _ = self._listener.accept()
            try:
                line, hello = accept(connection, self._context, self._within_s)
            except PartyError as error:
                self.failures.append(str(error))
                return
            self.lines.append(line)
            self.hellos.append(hello)
            line.send(answer.to_dict(), 5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join(timeout=10)
        self._listener.close()
        for line in self.lines:
            line.close()


def call(server, folder=None, within_s=5.0):
    own = None if folder is None else credentials(folder)
    return dial(server.address, "127.0.0.2", HELLO, own, within_s)


@pytest.mark.parametrize("encrypted", [True, False])
def test_a_client_is_welcome(certificates, encrypted):
    pair = certificates / "pair"
    with Server(pair / "server" if encrypted else None) as server:
        line, answer = call(server, pair / "client" if encrypted else None)
        with line:
            assert answer == WELCOME
            assert line.certified == ("server" if encrypted else "")
            assert server.lines[0].certified == ("client" if encrypted else "")
        assert server.hellos == [HELLO]


@pytest.mark.parametrize(
    ("own", "theirs", "client_says", "server_says"),
    [
        ("pair/server", "foreign/client", "certificate.*not accepted", "certificate"),
        ("pair/server", None, "hung up", "no TLS"),
        (None, "pair/client", "TLS", "no message of mpcvit"),
        ("foreign/server", "pair/client", "certificate.*not accepted", "unknown ca"),
        ("pair/client", "pair/client", "not accepted|that of 'client'", "."),
        ("pair/server", "pair/server", "hung up|no server", "that of 'server', not of 'client'"),
        ("pair/server", "mixed", "does not accept this certificate|hung up", "certificate"),
    ],
)
def test_the_wrong_certificate_or_none(
    certificates, tmp_path, own, theirs, client_says, server_says
):
    if theirs == "mixed":  # trusts the right authority, but was signed by another
        for name in ("key.pem", "cert.pem"):
            source = certificates / "foreign" / "client" / name
            (tmp_path / name).write_bytes(source.read_bytes())
        (tmp_path / "ca.pem").write_bytes((certificates / "pair/client/ca.pem").read_bytes())
    folder = tmp_path if theirs == "mixed" else theirs and certificates / theirs
    with Server(own and certificates / own) as server:
        with pytest.raises(PartyError, match=client_says) as error:
            call(server, folder)
        assert "\n" not in str(error.value)
    assert server.hellos == []
    assert len(server.failures) == 1
    assert re.search(server_says, server.failures[0]), server.failures


def test_an_expired_server(certificates):
    expired = certificates / "expired"
    with Server(expired / "server") as server, pytest.raises(PartyError, match="has expired"):
        call(server, expired / "client")
    assert server.hellos == []


def test_an_expired_client(tmp_path):
    """Signed by the very authority that the server trusts, but too long ago."""
    make_certificates(tmp_path, roles=roles_named("server"), days=30)
    make_certificates(tmp_path, roles=roles_named("client"), days=8, now=LONG_AGO)
    refused = pytest.raises(PartyError, match=r"certificate expired|hung up")
    with Server(tmp_path / "server") as server, refused:
        call(server, tmp_path / "client")
    assert server.hellos == []
    assert "certificate" in server.failures[0]


def test_another_host_than_the_certificate_names(tmp_path):
    make_certificates(tmp_path, hosts=["model.example.org"])
    refused = pytest.raises(PartyError, match="not accepted: Hostname mismatch")
    with Server(tmp_path / "server") as server, refused:
        call(server, tmp_path / "client")
    assert server.hellos == []


def frame(content):
    return struct.pack(">I", len(content)) + content


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100_000,
        frame(b"no json"),
        frame(b"[" * 10_000),
        frame(b"[]"),
        frame(b'{"format": "another"}'),
        frame(json.dumps({**HELLO.to_dict(), "link_port": 2**16}).encode()),
        frame(json.dumps({**HELLO.to_dict(), "link_port": True}).encode()),
        frame(json.dumps({**HELLO.to_dict(), "terms": []}).encode()),
    ],
    ids=range(9),
)
def test_garbage_is_no_hello(garbage):
    with Server() as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=5) as stranger:
            stranger.sendall(garbage)
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(10) == b""  # hung up, without a word
    assert server.hellos == []
    assert len(server.failures) == 1


@pytest.mark.parametrize("drip", [b"", b" "], ids=["silent", "slow"])
def test_silence_is_cut_off(drip):
    """Also of one who announces a message and sends a byte of it now and then."""
    with Server(within_s=0.5) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port)), timeout=20) as stranger:
            stranger.sendall(struct.pack(">I", 9999)[: 4 * len(drip)])
            deadline = time.monotonic() + 20
            while not server.failures:
                assert time.monotonic() < deadline
                with contextlib.suppress(OSError):
                    stranger.sendall(drip)
                time.sleep(0.05)
    assert server.failures == ["said no hello within 0.5 s"]


def answering(content):
    """A server that says something else."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run():
        with listener:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(content)
                if not content:
                    connection.recv(1)

    threading.Thread(target=run, daemon=True).start()
    return f"localhost:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "no server of this kind"),
        (frame(b"{}"), "no server of this kind"),
        (frame(json.dumps({**WELCOME.to_dict(), "verdict": "?"}).encode()), "no server of this"),
        (frame(json.dumps({**WELCOME.to_dict(), "session": "x"}).encode()), "no server of this"),
        (frame(json.dumps({**WELCOME.to_dict(), "engine": {"x": 1}}).encode()), "no server of thi"),
        (frame(b"{")[:3], "hung up without an answer"),
        (b"", "took the connection but said nothing for 1 s"),
    ],
    ids=range(7),
)
def test_a_server_of_another_kind(content, message):
    with pytest.raises(PartyError, match=message) as error:
        dial(answering(content), "127.0.0.2", HELLO, None, 1.0)
    assert "\n" not in str(error.value)


def test_a_refusal_is_passed_on():
    reason = "the parties differ in x: the model owner has 1, the data owner has 2"
    answer = Answer(verdict=Verdict.REFUSED, reason=reason)
    with Server(answers=[answer]) as server, pytest.raises(PartyError, match=f"refuses: {reason}"):
        call(server)


def test_a_busy_server_is_tried_again():
    busy = Answer(verdict=Verdict.BUSY)
    with Server(answers=[busy, busy, WELCOME]) as server:
        line, answer = call(server, within_s=20)
        line.close()
    assert answer == WELCOME
    put_off = pytest.raises(PartyError, match=r"is busy with another client \(tried for 0\.5 s")
    with Server(answers=[busy] * 2) as server, put_off:
        call(server, within_s=0.5)


def test_nobody_there():
    (address,) = free_addresses(1)
    with pytest.raises(PartyError, match=f"nobody answers at {address}.*tried for 0.5 s"):
        dial(address, "127.0.0.2", HELLO, None, 0.5)


def check_for_seconds(dog):
    for _ in range(500):
        time.sleep(0.01)
        dog.check()


def test_a_watchdog_notices_who_is_gone_and_who_is_done():
    with Server() as server:
        line, _ = call(server)
        with line:
            dog = Watchdog(line, "the server is gone", grace_s=0.0)
            dog.check()
            server.lines[0].close()
            with pytest.raises(PartyError, match="the server is gone"):
                check_for_seconds(dog)
    with Server() as server:
        line, _ = call(server)
        with line:
            dog = Watchdog(line, "the server is gone", grace_s=0.0)
            threading.Thread(target=Watchdog(server.lines[0], "").part, daemon=True).start()
            dog.part()
            server.lines[0].close()
            dog.check()


def test_lines_carry_messages_in_any_pieces():
    with Server() as server:
        line, _ = call(server)
        with line, server.lines[0] as other:
            for _ in range(3):
                other.send(WELCOME.to_dict(), 5)
            assert [Answer.from_dict(line.receive(5)) for _ in range(3)] == [WELCOME] * 3
            assert line.poll() is None
            assert line.is_open

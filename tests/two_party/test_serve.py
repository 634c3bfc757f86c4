"""Two hosts, as two loopback addresses with TLS: clients of every kind, one after another."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import mpcvit
from mpcvit.classifier import Classifier
from mpcvit.errors import UserError
from mpcvit.profile import load_profile
from mpcvit.runtime.certificates import make_certificates
from mpcvit.runtime.rendezvous import Hello, dial
from mpcvit.runtime.roles import free_addresses
from mpcvit.runtime.terms import terms_of
from mpcvit.runtime.tls import Credentials
from tests.tolerances import FXP18, assert_close
from tests.two_party.processes import is_listening, working_below

PROFILE = """\
protocol = "SEMI2K"
dealer = "first-party-insecure"
limits.connect_s = 60.0
limits.silence_s = 30.0
"""
FIELDS = {
    *("time", "peer", "certificate", "images", "sent_bytes", "received_bytes"),
    *("exchanges", "seconds", "ended"),
}


class Served:
    """`mpcvit serve` as a process of its own, and its log."""

    def __init__(self, folder, checkpoint):
        self.folder, self.certificates = folder, folder / "certs"
        make_certificates(self.certificates)
        checkpoint.save(folder / "model.safetensors")
        (folder / "profile.toml").write_text(PROFILE)
        self.profile = load_profile(folder / "profile.toml")
        self.address, self.link = _two_ports()
        self._log = folder / "log"
        (folder / "temporary").mkdir()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mpcvit", "serve", folder / "model.safetensors"),
                    *("--listen", self.address, "--tls", self.certificates / "server"),
                    *("--profile", folder / "profile.toml", "--json", "--reveal", "logits"),
                ],
                stdout=log,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(folder / "temporary")},
            )
        assert self.process.stderr is not None
        lines = iter(self.process.stderr.readline, "")
        assert any(line.startswith("serving ") for line in lines), "the server did not start"
        self._read = 0

    def predict(self, pixels, **options):
        (listen,) = free_addresses(1)
        return mpcvit.predict(
            pixels,
            **{
                "server": self.address,
                "listen": listen.replace("127.0.0.1", "127.0.0.2"),
                "tls": self.certificates / "client",
                "profile": self.profile,
                **options,
            },
        )

    def dial(self, folder, within_s=20.0):
        hello = Hello(terms=terms_of(self.profile), link_port=free_port())
        own = None if folder is None else Credentials(folder=folder)
        return dial(self.address, "127.0.0.2", hello, own, within_s)

    def next_visit(self, *, skip="put off"):
        """The next line of the log; those of clients that were put off are of no interest."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lines = self._log.read_text().splitlines()
            if len(lines) > self._read:
                visit = json.loads(lines[self._read])
                self._read += 1
                if not visit["ended"].startswith(skip):
                    return visit
            else:
                time.sleep(0.05)
        raise AssertionError("nothing was logged")

    def party(self):
        """The process that has the model."""
        (found,) = working_below(self.folder / "temporary")
        return found

    def close(self):
        """A polite end, and nothing is left of it."""
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0
        self.process.stderr.close()
        assert working_below(self.folder / "temporary") == []
        assert list((self.folder / "temporary").iterdir()) == []
        assert not is_listening(self.address)
        assert not is_listening(self.link)


def _two_ports():
    """An address whose port above is free too."""
    while True:
        (address,) = free_addresses(1)
        host, port = address.rsplit(":", 1)
        above = f"{host}:{int(port) + 1}"
        if int(port) < 65535 and not is_listening(above):
            return address, above


def free_port():
    return int(free_addresses(1)[0].rsplit(":", 1)[1])


@pytest.fixture(scope="module")
def served(tmp_path_factory, checkpoint):
    server = Served(tmp_path_factory.mktemp("served"), checkpoint)
    try:
        yield server
        server.close()
    finally:
        server.process.kill()


@pytest.fixture
def doomed(tmp_path, pixels):
    """Starts a client that will not get to its end."""
    clients = []

    def start(served):
        clients.append(Doomed(served, pixels, tmp_path))
        return clients[-1]

    yield start
    for client in clients:
        client.process.kill()


@pytest.fixture(scope="module")
def expected(checkpoint, pixels):
    plain = Classifier(checkpoint)
    return plain(plain.preprocess(list(pixels)))


def is_served(served, pixels, expected):
    """A client like any other gets its result, and the log says so."""
    result = served.predict(pixels[:1])
    assert_close(result.logits, expected[:1], FXP18)
    visit = served.next_visit()
    assert (visit["ended"], visit["images"]) == ("done", 1)


class Doomed:
    """A client with many images, in a process of its own, in the middle of them."""

    CODE = (
        "import sys, numpy as np, mpcvit\n"
        "server, listen, tls, profile, pixels = sys.argv[1:]\n"
        "def progress(what, done, total):\n"
        "    print(what, flush=True)\n"
        "try:\n"
        "    mpcvit.predict(np.load(pixels), server=server, listen=listen, tls=tls,\n"
        "                   profile=profile, progress=progress)\n"
        "except mpcvit.errors.UserError as error:\n"
        "    print('error:', error, flush=True)\n"
    )

    def __init__(self, served, pixels, folder):
        np.save(folder / "pixels.npy", np.repeat(pixels[:1], 5000, axis=0))
        (listen,) = free_addresses(1)
        self.folder = folder
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", self.CODE, served.address, listen),
                *(served.certificates / "client", served.folder / "profile.toml"),
                folder / "pixels.npy",
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        assert self.process.stdout is not None
        assert any(line == "running\n" for line in self.process.stdout)

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        """Its last word."""
        last = [line for line in self.process.stdout if line.startswith("error: ")]
        self.process.wait(timeout=60)
        self.process.stdout.close()
        deadline = time.monotonic() + 30
        while working_below(self.folder):
            assert time.monotonic() < deadline, "a party outlived its supervisor"
            time.sleep(0.05)
        return "".join(last)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_clients_one_after_another(served, checkpoint, pixels, expected, batch_size):
    progress = []
    result = served.predict(
        pixels, batch_size=batch_size, progress=lambda *event: progress.append(event)
    )
    assert_close(result.logits, expected, FXP18)
    assert result.classes == checkpoint.classes
    record = result.record
    assert record.transport == "hosts"
    assert record.images == 2
    assert record.set_up.received_bytes > 8 * checkpoint.parameter_count
    assert len(record.batches) == 2 // batch_size
    assert progress[-1][0] == "running"
    assert progress[-1][1] == progress[-1][2]
    visit = served.next_visit()
    # exactly this, and so no share, value or result
    assert set(visit) == FIELDS
    assert visit["ended"] == "done"
    assert visit["certificate"] == "client"
    assert visit["peer"].startswith("127.0.0.2:")
    assert visit["images"] == 2
    assert visit["exchanges"] == record.exchanges
    assert (visit["sent_bytes"], visit["received_bytes"]) == (
        record.received_bytes,
        record.sent_bytes,
    )


def test_a_client_that_vanishes(served, pixels, expected, doomed):
    client = doomed(served)
    with pytest.raises(UserError, match="is busy with another client"):
        served.dial(served.certificates / "client", within_s=0.5)
    client.kill()
    visit = served.next_visit()
    assert visit["ended"].startswith("the client vanished after ")
    assert visit["exchanges"] > 0
    is_served(served, pixels, expected)


def test_a_party_that_dies(served, pixels, expected, doomed):
    client = doomed(served)
    os.kill(served.party(), signal.SIGKILL)
    message = client.end()
    assert "ended the session" in message or "connection to its peer was lost" in message
    assert "process ended unexpectedly" in served.next_visit()["ended"]
    is_served(served, pixels, expected)


def test_strangers(served, pixels, expected, tmp_path):
    """Garbage, silence and wrong certificates; meanwhile a client is served."""
    host, port = served.address.rsplit(":", 1)
    with (
        socket.create_connection((host, int(port))) as silent,
        socket.create_connection((host, int(port))) as loud,
    ):
        loud.sendall(b"\x00\xff" * 5000)
        assert "no TLS" in served.next_visit()["ended"]
        make_certificates(tmp_path / "foreign")
        for folder in (tmp_path / "foreign" / "client", None, served.certificates / "server"):
            with pytest.raises(UserError):
                served.dial(folder)
            visit = served.next_visit()
            assert "certificate" in visit["ended"]
            assert visit["images"] == visit["exchanges"] == visit["sent_bytes"] == 0
        result = served.predict(pixels[:1])
        assert_close(result.logits, expected[:1], FXP18)
        ended = {served.next_visit()["ended"] for _ in range(2)}
        assert ended == {"done", "said no hello within 10 s"}
        silent.close()


def test_a_guest_who_never_comes_to_the_link(served):
    line, answer = served.dial(served.certificates / "client")
    assert f"127.0.0.1:{answer.link_port}" == served.link
    line.close()
    assert served.next_visit()["ended"] == "the client vanished before the first stage"


def test_another_profile_is_refused_with_both_values(served, pixels):
    with pytest.raises(UserError, match=r"fraction_bits: the model owner has 18, .* has 16"):
        served.predict(pixels, profile=replace(served.profile, fraction_bits=16))
    ended = served.next_visit()["ended"]
    assert ended.startswith("refused: the parties differ in profile's fraction_bits")


def test_a_server_that_is_stopped(tmp_path_factory, checkpoint, doomed):
    """In the middle of a session: both ends say so, and nothing is left."""
    served = Served(tmp_path_factory.mktemp("stopped"), checkpoint)
    try:
        client = doomed(served)
        served.close()
    finally:
        served.process.kill()
    assert served.next_visit()["ended"] == "the server was stopped"
    message = client.end()
    assert "ended the session" in message or "connection to its peer was lost" in message


def test_a_server_in_python(tmp_path, checkpoint, pixels, expected):
    """Without TLS, as both are on this machine; it ends after one client."""
    address, _ = _two_ports()
    visits, started = [], threading.Event()
    server = threading.Thread(
        target=mpcvit.serve,
        args=(checkpoint,),
        kwargs={
            "listen": address,
            "profile": "semi2k",
            "reveal": "logits",
            "max_clients": 1,
            "started": started.set,
            "log": visits.append,
        },
    )
    server.start()
    assert started.wait(timeout=120)
    (listen,) = free_addresses(1)
    result = mpcvit.predict(pixels, server=address, listen=listen, profile="semi2k")
    server.join(timeout=60)
    assert not server.is_alive()
    assert_close(result.logits, expected, FXP18)
    (visit,) = visits
    assert (visit.ended, visit.certificate, visit.images) == ("done", "", 2)
    assert str(visit).endswith('ended="done"')
    assert not is_listening(address)

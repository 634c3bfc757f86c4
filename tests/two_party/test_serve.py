"""A server and its clients on loopback: results, counts, the log, and what is refused."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import mpcvit
from mpcvit.artifacts.profile import load_profile
from mpcvit.classifier import Classifier
from mpcvit.errors import UserError
from mpcvit.hosts.certificates import make_certificates
from mpcvit.secure.parties.roles import free_addresses
from tests.marks import mostly_long
from tests.tolerances import FXP18, assert_close
from tests.two_party.conftest import shared_count
from tests.two_party.processes import is_listening, ports_of, working_below

PROFILE = """\
protocol = "SEMI2K"
dealer = "first-party-insecure"
limits.connect_s = 120.0
limits.silence_s = 120.0
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
        make_certificates(self.certificates, names=("hospital",))
        checkpoint.save(folder / "model.safetensors")
        (folder / "profile.toml").write_text(PROFILE)
        self.profile = load_profile(folder / "profile.toml")
        (self.address,) = free_addresses(1)
        self._log = folder / "log"
        (folder / "temporary").mkdir()
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mpcvit", "serve", folder / "model.safetensors"),
                    *("--listen", self.address, "--tls", self.certificates / "server"),
                    *("--profile", folder / "profile.toml", "--json", "--clients", "2"),
                    *("--max-images", "3", "--max-batch", "2", "--metrics", "none"),
                    *("--reveal", "logits"),
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

    def predict(self, pixels, client="client", **options):
        settings = {"tls": self.certificates / client, "profile": self.profile, **options}
        return mpcvit.predict(pixels, server=self.address, **settings)

    def next_visit(self):
        """The next line of the log."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lines = self._log.read_text().splitlines()
            if len(lines) > self._read:
                self._read += 1
                return json.loads(lines[self._read - 1])
            time.sleep(0.05)
        raise AssertionError("nothing was logged")

    def close(self):
        """A polite end, and nothing is left of it."""
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0
        self.process.stderr.close()
        assert working_below(self.folder / "temporary") == []
        assert list((self.folder / "temporary").iterdir()) == []
        assert not is_listening(self.address)


@pytest.fixture(scope="module")
def served(tmp_path_factory, checkpoint):
    server = Served(tmp_path_factory.mktemp("served"), checkpoint)
    try:
        yield server
        server.close()
    finally:
        server.process.kill()


@pytest.fixture(scope="module")
def expected(checkpoint, pixels):
    plain = Classifier(checkpoint)
    return plain(plain.preprocess(list(pixels)))


@pytest.mark.parametrize("batch_size", mostly_long([1, 2], 1))  # as two parties of one host
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
    assert 0 < record.set_up.received_bytes < shared_count(checkpoint)  # seeds
    assert len(record.batches) == 2 // batch_size
    assert progress[-1][0] == "running"
    assert progress[-1][1] == progress[-1][2]
    visit = served.next_visit()
    # exactly this, and so no share, value or result
    assert set(visit) == FIELDS
    assert visit["ended"] == "done"
    assert visit["certificate"] == "client"
    assert visit["peer"].startswith("127.0.0.1:")
    assert visit["images"] == 2
    assert visit["exchanges"] == record.exchanges
    assert (visit["sent_bytes"], visit["received_bytes"]) == (
        record.received_bytes,
        record.sent_bytes,
    )


def test_two_clients_at_once(served, pixels, expected):
    """Each gets its own answer; the log tells them apart."""
    with ThreadPoolExecutor(2) as threads:
        one = threads.submit(served.predict, pixels[:1])
        other = threads.submit(served.predict, pixels[1:], "hospital")
        assert_close(one.result().logits, expected[:1], FXP18)
        assert_close(other.result().logits, expected[1:], FXP18)
    visits = [served.next_visit() for _ in range(2)]
    assert {visit["certificate"] for visit in visits} == {"client", "hospital"}
    assert {visit["ended"] for visit in visits} == {"done"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees a protected process's sockets")
def test_one_port_is_open(served):
    port = int(served.address.rpartition(":")[2])
    assert ports_of(served.process.pid) == [port]
    for party in working_below(served.folder / "temporary"):
        assert ports_of(party) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"profile": "semi2k-fewer"}, r"fraction_bits: the model owner has 18, .* has 16"),
        ({"images": 4}, "4 images in one session are more than the 3"),
        ({"images": 3, "batch_size": 3}, "3 images at a time are more than the 2"),
    ],
)
def test_refusals(served, pixels, options, message):
    images = pixels[[0] * options.pop("images", 1)]
    if "profile" in options:
        options["profile"] = replace(served.profile, fraction_bits=16)
    with pytest.raises(UserError, match=message):
        served.predict(images, **options)
    assert served.next_visit()["ended"].startswith("refused: ")


def test_a_server_of_another_certificate(served, pixels, tmp_path):
    """A client trusts the fingerprints in its folder, not all that its authority signed."""
    folder = tmp_path / "client"
    folder.mkdir()
    for file in (served.certificates / "client").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "allowed.txt").write_text(f"{'0' * 64}  server\n")
    with pytest.raises(UserError, match="is not on the list of servers"):
        served.predict(pixels[:1], tls=folder)
    assert "hung up" in served.next_visit()["ended"]


def test_a_server_in_python(tmp_path, checkpoint, pixels, expected):
    """It ends after one session."""
    make_certificates(tmp_path / "certs")
    (address,) = free_addresses(1)
    visits, started = [], threading.Event()
    server = threading.Thread(
        target=mpcvit.serve,
        args=(checkpoint,),
        kwargs={
            "listen": address,
            "tls": tmp_path / "certs" / "server",
            "profile": "semi2k",
            "reveal": "logits",
            "max_sessions": 1,
            "started": started.set,
            "log": visits.append,
        },
    )
    server.start()
    assert started.wait(timeout=120)
    tls = tmp_path / "certs" / "client"
    result = mpcvit.predict(pixels, server=address, tls=tls, profile="semi2k")
    server.join(timeout=60)
    assert not server.is_alive()
    assert_close(result.logits, expected, FXP18)
    (visit,) = visits
    assert (visit.ended, visit.certificate, visit.images) == ("done", "client", 2)
    assert str(visit).endswith('ended="done"')
    assert not is_listening(address)

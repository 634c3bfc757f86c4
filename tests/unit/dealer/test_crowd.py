"""Connections that are many, slow or never done; logs that fail; jobs of one party alone."""

import contextlib
import errno
import json
import resource
import socket
import sqlite3
import threading

import pytest

from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.script import Kind, Script, Step
from mpcvit.dealer.server import MAX_CONNECTIONS_EACH
from mpcvit.dealer.table import JobLimits, JobTable
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.door import DoorLimits
from mpcvit.hosts.peer import Peer
from mpcvit.secure.dealing.local_dealer import LocalDealer
from mpcvit.secure.parties.roles import Role
from tests.unit.dealer.counting import family
from tests.unit.dealer.jobs import SCRIPT, authorise, expected, fetch, make_job, new_seeds, outline
from tests.unit.dealer.test_server import CLIENT, SERVER, Clock
from tests.unit.dealer.waiting import wait_until

OTHER_CLIENT = Peer(role="client", name="other", fingerprint="d" * 64)
OTHER_SERVER = Peer(role="server", name="server", fingerprint="6" * 64)


def dial(dealer):
    host, port = dealer.address.split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def shake_hands(dealer, client):
    """Open a line that is through its handshake; on a busy machine the dealer may hang up first."""
    while True:
        plain = dial(dealer)
        try:
            return client.context.wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()


def is_hung_up(plain):
    """Whether the other end has closed, once it has or 20 s are over."""
    with contextlib.suppress(ConnectionError):
        return plain.recv(1) == b""
    return True


def go_through(dealer, key):
    seeds = new_seeds()
    authorise(dealer, job := make_job(key, seeds))
    assert fetch(dealer.client("server"), job) == expected(seeds)


@pytest.mark.parametrize("when", ["in the handshake", "in the request", "in the body"])
def test_dripping_bytes_do_not_prolong_a_request(running, key, when):
    dealer = running(request_s=0.5)
    client = dealer.client("server")
    line = dial(dealer) if when == "in the handshake" else shake_hands(dealer, client)
    if when == "in the body":
        line.sendall(b"POST /jobs HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
    drip = b"\x16\x03\x01\x02\x00" + bytes(500) if when == "in the handshake" else b"G" * 500
    line.settimeout(0.1)
    with line:
        for index in range(300):  # half a minute of a byte now and then
            try:
                line.sendall(drip[index : index + 1])
                if line.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("it holds its place for as long as it likes")
    go_through(dealer, key)


def test_when_the_room_is_full_the_oldest_goes(running, key):
    dealer = running(request_s=60.0, stall_s=60.0)  # nobody goes for being slow
    with contextlib.ExitStack() as stack:
        crowd = [
            stack.enter_context(dial(dealer)) for _ in range(DoorLimits().strangers_per_address)
        ]
        dealer.client("server").check()  # takes the place of the first
        assert is_hung_up(crowd[0])
        crowd[-1].settimeout(0.1)
        with pytest.raises(TimeoutError):
            crowd[-1].recv(1)
        go_through(dealer, key)


LONG = Script(tuple(Step(kind=Kind.MUL, width=8, shape=(1_000_000,)) for _ in range(4)))


def test_one_certificate_cannot_take_all_places(running, key):
    """A server that asks for material and does not read it."""
    dealer = running(stall_s=60.0)
    authorise(dealer, job := make_job(key, script=LONG))
    server = dealer.client("server")
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS_EACH):
            stack.enter_context(server._answer("GET", f"/jobs/{job.digest}/0/0"))
        with pytest.raises(LaterError, match="'server' has too many connections"):
            server._ask("GET", "/terms")
        dealer.client("client").check()
    server.check()


def test_one_that_reads_nothing_is_hung_up_on(running, key, monkeypatch):
    monkeypatch.setattr("mpcvit.dealer.server._SLOWEST", 1e12)
    dealer = running(stall_s=0.5)
    authorise(dealer, job := make_job(key, script=LONG))
    with dealer.client("server")._answer("GET", f"/jobs/{job.digest}/0/0") as answer:
        wait_until(lambda: any(line.what == "inference 0" for line in dealer.log))
        (line,) = (line for line in dealer.log if line.what == "inference 0")
        assert line.ended != "done"
        assert line.sent_bytes < LONG.answer_bytes
        answer.close()


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "full"), ValueError()])
def test_a_log_that_fails(running, key, error):
    def log(line):
        raise error

    dealer = running(log=log)
    for _ in range(MAX_CONNECTIONS_EACH + 1):
        dealer.client("server").check()
    go_through(dealer, key)


def test_a_log_that_blocks(running, key):
    """A reader of standard output that has stopped reading."""
    ended = threading.Event()
    dealer = running(log=lambda line: ended.wait())
    for _ in range(MAX_CONNECTIONS_EACH + 1):
        dealer.client("server").check()
    go_through(dealer, key)
    ended.set()


def test_no_file_is_left(tmp_path):
    """Connections wait in the kernel until there is one."""
    with LocalDealer(tmp_path / "dealer") as local:
        pid = local.process.pid
        client = local.places()[Role.MODEL_OWNER].client(patience_s=20.0)
        client.check()
        wait_until(lambda: len(family(pid)) == 2)
        former = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, former[1]))
        impatient = local.places()[Role.MODEL_OWNER].client(patience_s=1.0)
        with pytest.raises(DealerError):
            impatient.check()
        assert local.process.poll() is None
        resource.prlimit(pid, resource.RLIMIT_NOFILE, former)
        client.check()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(key, tmp_path, clock):
    return JobTable(tmp_path / "jobs", key, JobLimits(waiting_jobs=3, client_jobs=2), clock)


def open_job(table, job, server=SERVER, client=CLIENT):
    for peer in (client, server):
        table.authorise(outline(job), peer)
    return table.begin(job.digest, 0, server)


def test_half_authorised_jobs_hurt_their_sender_alone_and_for_a_minute(table, key, clock):
    for _ in range(3):
        table.authorise(outline(make_job(key)), SERVER)
    with pytest.raises(LaterError, match="3 jobs of this server's certificate are waiting already"):
        table.authorise(outline(make_job(key)), SERVER)
    open_job(table, make_job(key), server=OTHER_SERVER)
    open_job(table, make_job(key))  # what the other authorised first is no waiting job of its own
    clock.time += 61
    table.authorise(outline(make_job(key)), SERVER)


def test_one_party_cannot_prolong_a_job_alone(table, key, clock):
    job = make_job(key)
    for _ in range(3):
        table.authorise(outline(job), CLIENT)
        clock.time += 25
    with pytest.raises(DealerError, match="no such job, or it has expired"):
        table.require_open(job.digest, CLIENT)


def test_a_client_s_open_jobs_leave_others_their_server(table, key):
    for _ in range(2):
        open_job(table, make_job(key))
    with pytest.raises(LaterError, match="2 jobs of this client's certificate are open already"):
        open_job(table, make_job(key))
    open_job(table, make_job(key), client=OTHER_CLIENT)


def test_a_job_belongs_to_the_certificates_that_authorised_it(table, key):
    job = make_job(key)
    open_job(table, job)
    for ask in (
        lambda: table.begin(job.digest, 0, OTHER_SERVER),
        lambda: table.require_open(job.digest, OTHER_CLIENT),
    ):
        with pytest.raises(DealerError, match="has no part in the job"):
            ask()
    with pytest.raises(DealerError, match="another client has authorised the job"):
        table.authorise(outline(job), OTHER_CLIENT)


def test_a_party_sees_its_own_totals_alone(dealer, key, certificates):
    go_through(dealer, key)
    make_certificates(certificates, names=("another",))
    for party in ("server", "client"):
        own = json.loads(dealer.client(party).metrics())
        assert (own["jobs"], own["inferences"]) == (1, 1)
        assert own["sent_bytes"] == SCRIPT.answer_bytes
    other = json.loads(dealer.client("another").metrics())
    assert set(other.values()) == {0}
    assert set(other) == set(own)
    assert dealer.table.totals()["jobs"] == 1


def test_records_of_an_older_layout(key, tmp_path):
    """Open jobs are forgotten; used seeds and totals are not."""
    job = make_job(key)
    table = JobTable(tmp_path / "new", key)
    open_job(table, job)
    with contextlib.closing(sqlite3.connect(tmp_path / "new")) as new:
        used = new.execute("SELECT * FROM seeds").fetchall()
    with contextlib.closing(sqlite3.connect(tmp_path / "old")) as old, old:
        old.execute("CREATE TABLE jobs (digest TEXT PRIMARY KEY, server INTEGER NOT NULL)")
        old.execute("CREATE TABLE seeds (fingerprint BLOB PRIMARY KEY, job TEXT NOT NULL)")
        old.execute("CREATE TABLE visits (party TEXT NOT NULL, moment REAL NOT NULL)")
        old.execute("CREATE TABLE totals (name TEXT PRIMARY KEY, value REAL NOT NULL)")
        old.execute("INSERT INTO totals VALUES ('jobs', 7), ('seconds', 2.5)")
        old.executemany("INSERT INTO seeds VALUES (?, ?)", used)
    table = JobTable(tmp_path / "old", key)
    assert table.totals()["jobs"] == 7
    with pytest.raises(DealerError, match="a seed was used in another job"):
        open_job(table, make_job(key, sealed=job.seeds, start=99))
    open_job(table, make_job(key))
    assert JobTable(tmp_path / "old", key).totals()["jobs"] == 8

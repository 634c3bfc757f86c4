"""Who may ask, how much, and what the dealer says of it."""

import base64
import json
import socket
import sqlite3
import ssl
import threading
import time
import zlib

import pytest

from mpcvit import doctor
from mpcvit.dealer import SPU_VERSION
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.keys import make_keys
from mpcvit.dealer.limits import MOST_REQUEST_BYTES, MOST_STEP_BYTES
from mpcvit.dealer.script import Kind, Script, Step
from mpcvit.dealer.table import JobLimits, JobTable
from mpcvit.doctor import State
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.credentials import Credentials
from mpcvit.hosts.peer import Peer
from tests.unit.dealer.conftest import ALL, GOLDEN
from tests.unit.dealer.jobs import SCRIPT, authorise, expected, fetch, make_job, new_seeds, outline


def test_material_of_a_job(dealer, key):
    seeds = new_seeds()
    job = make_job(key, seeds)
    dealer.client("server").check()
    authorise(dealer, job)
    assert fetch(dealer.client("server"), job) == expected(seeds)


def test_several_jobs_at_once_do_not_mix(dealer, key):
    seeds = [new_seeds() for _ in range(6)]
    jobs, found = [make_job(key, pair) for pair in seeds], {}

    def take_part(index):
        authorise(dealer, jobs[index])
        found[index] = fetch(dealer.client("server", patience_s=10), jobs[index])

    threads = [threading.Thread(target=take_part, args=(index,)) for index in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(jobs))] == [expected(pair) for pair in seeds]
    assert dealer.client("server")._ask("GET", "/metrics").startswith(b'{"jobs": 6.0')
    assert dealer.table.totals()["sent_bytes"] == 6 * SCRIPT.answer_bytes


def test_the_log_tells_counts_and_no_secret(dealer, key):
    seeds = new_seeds()
    job = make_job(key, seeds)
    authorise(dealer, job)
    fetch(dealer.client("server"), job)
    patience = time.monotonic() + 10
    while len(dealer.log) < 3 and time.monotonic() < patience:
        time.sleep(0.01)  # a line is written after the answer
    lines = [str(line) for line in dealer.log]
    assert [line.what for line in dealer.log][:3] == ["authorise", "authorise", "inference 0"]
    assert f"sent_bytes={SCRIPT.answer_bytes}" in lines[2]
    text = " ".join(lines)
    for secret in (*seeds, *job.seeds):
        assert secret.hex()[:16] not in text
        assert base64.b64encode(secret).decode()[:16] not in text


def test_the_log_does_not_call_an_early_party_refused(dealer, key):
    job = make_job(key)
    dealer.client("client").authorise(job)
    with pytest.raises(LaterError):
        dealer.client("client")._ask("GET", f"/jobs/{job.digest}")
    patience = time.monotonic() + 10
    while len(dealer.log) < 2 and time.monotonic() < patience:
        time.sleep(0.01)
    assert dealer.log[-1].ended == "put off: the server has not authorised the job"


def test_nothing_secret_but_ciphertexts_is_kept(dealer, key):
    seeds = new_seeds()
    job = make_job(key, seeds)
    authorise(dealer, job)
    fetch(dealer.client("server"), job)
    content = dealer.records.read_bytes()
    assert not any(seed in content for seed in seeds)


@pytest.mark.long
def test_strangers(dealer, certificates, tmp_path):
    make_certificates(tmp_path / "foreign", names=ALL)
    with pytest.raises(DealerError, match=r"certificate of the dealer .* is not accepted"):
        dealer.client("server", tmp_path / "foreign").check()
    # a party of another authority that would believe this dealer
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certificates / "server" / "dealer-ca.pem")
    with pytest.raises(DealerError, match=r"hung up|breaks off"):
        dealer.client("server", context=context).check()
    # the dealer itself, whose certificate is of another authority than the parties'
    context = Credentials(folder=certificates / "server").dealer_context()
    own = Credentials(folder=certificates / "dealer")
    context.load_cert_chain(own.certificate, own.key)
    with pytest.raises(DealerError, match=r"hung up|breaks off"):
        dealer.client("server", context=context).check()


def test_a_party_does_not_believe_anyone_else(dealer):
    with pytest.raises(DealerError, match="another key than the one given"):
        dealer.client("server", fingerprint="0" * 64).check()
    elsewhere = dealer.address.replace("127.0.0.1", "other.example")
    with pytest.raises(DealerError, match=r"certificate of the dealer at other.*not accepted"):
        dealer.client("server", address=elsewhere, dialled=dealer.address).check()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\0\r\n\r\n",
        b"x" * 10_000 + b"\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /jobs/x/1/y HTTP/1.1\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nContent-Length: 2\r\n\r\n[]",
    ],
)
def test_garbage_is_refused_and_the_next_is_served(dealer, garbage):
    client = dealer.client("server")
    host, port = dealer.address.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        client.context.wrap_socket(plain, server_hostname=host) as line,
    ):
        line.sendall(garbage)
        assert line.recv(20).startswith(b"HTTP/1.1 403")
    client.check()


def test_too_big_a_request(dealer):
    host, port = dealer.address.split(":")
    with (
        socket.create_connection((host, int(port))) as plain,
        dealer.client("server").context.wrap_socket(plain, server_hostname=host) as line,
    ):
        line.sendall(
            b"POST /jobs HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MOST_REQUEST_BYTES + 1)
        )
        assert b"too big" in line.recv(1000) + line.recv(1000)


def test_the_number_of_open_jobs_is_limited(running, key):
    dealer = running(open_jobs=2)
    authorise(dealer, make_job(key))
    authorise(dealer, make_job(key))
    third = make_job(key)
    dealer.client("client").authorise(third)
    with pytest.raises(LaterError, match="2 jobs of this server's certificate are open already"):
        dealer.client("server")._ask("POST", "/jobs", third.to_bytes())


def test_jobs_that_are_done_leave_room_for_others(running, key):
    dealer = running(open_jobs=1)
    for _ in range(3):
        seeds = new_seeds()
        authorise(dealer, job := make_job(key, seeds, times=1))
        assert fetch(dealer.client("server"), job) == expected(seeds)
    assert fetch(dealer.client("server"), job) == expected(seeds)  # and are still answered


SERVER = Peer(role="server", name="server", fingerprint="5" * 64)
CLIENT = Peer(role="client", name="client", fingerprint="c" * 64)


class Clock:
    def __init__(self):
        self.time = 1_000_000.0

    def __call__(self):
        return self.time


def test_jobs_expire_whichever_way_the_clock_jumps(key, tmp_path):
    clock = Clock()
    table = JobTable(tmp_path / "jobs", key, JobLimits(idle_s=100.0, jobs_per_minute=3), clock)
    job = make_job(key)
    for peer in (SERVER, CLIENT):
        table.authorise(outline(job), peer)
    clock.time -= 10_000  # set back: nothing is lost
    table.authorise(outline(make_job(key)), SERVER)
    table.begin(job.digest, 0, SERVER)
    clock.time += 20_000
    with pytest.raises(DealerError, match="no such job, or it has expired"):
        table.begin(job.digest, 0, SERVER)
    table.authorise(outline(make_job(key)), SERVER)
    assert (tmp_path / "jobs").stat().st_mode & 0o077 == 0


def test_a_minute_s_worth_of_jobs(key, tmp_path):
    clock = Clock()
    table = JobTable(tmp_path / "jobs", key, JobLimits(jobs_per_minute=3), clock)
    for _ in range(3):
        table.admit(CLIENT)
    with pytest.raises(LaterError, match="more than 3 jobs in a minute"):
        table.admit(CLIENT)
    table.admit(SERVER)
    clock.time += 61
    table.admit(CLIENT)


def test_other_versions_and_other_keys(dealer, key):
    job = make_job(key)
    old = Job(seeds=job.seeds, start=0, plan=job.plan, key=job.key, spu="0.9.4")
    with pytest.raises(DealerError, match=f"serves SPU {SPU_VERSION}, and the parties have 0.9.4"):
        dealer.client("server").authorise(old)
    foreign = Job(seeds=job.seeds, start=0, plan=job.plan, key="0" * 64)
    with pytest.raises(DealerError, match="another key than this dealer's"):
        dealer.client("server").authorise(foreign)


def test_a_full_disk(dealer, key, monkeypatch):
    connect = sqlite3.connect

    def full(*arguments, **settings):
        connection = connect(*arguments, **settings)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    steps = tuple(Step(kind=Kind.MUL, width=8, shape=(5 + index,)) for index in range(9_000))
    job = make_job(key, script=Script(steps))
    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(DealerError, match="cannot keep its records: database or disk is full"):
        dealer.client("server").authorise(job)
    monkeypatch.undo()
    seeds = new_seeds()
    authorise(dealer, job := make_job(key, seeds))
    assert fetch(dealer.client("server"), job) == expected(seeds)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"seeds": []},
        {"seeds": ["AA==", "AA=="]},
        {"seeds": None},
        {"start": -1},
        {"start": 1.5},
        {"start": 2**63},
        {"plan": []},
        {"plan": [["AA==", 1]]},
        {"plan": [[1]]},
    ],
)
def test_jobs_that_cannot_be(key, change):
    document = {**json.loads(make_job(key).to_bytes()), **change}
    with pytest.raises(DealerError):
        Job.from_bytes(json.dumps(document).encode())


def test_jobs_and_scripts_survive_their_own_form(key):
    job = make_job(key)
    again = Job.from_bytes(job.to_bytes())
    assert again == job
    assert again.digest == job.digest
    assert Script.from_bytes(SCRIPT.to_bytes()).digest == SCRIPT.digest


@pytest.mark.parametrize(
    "row",
    [
        ["Mul", 8, [0], 0], ["Mul", 8, [-1], 0], ["Mul", 5, [1], 0], ["Perm", 8, [1], 0],
        ["Mul", 8, [1, 1], 0], ["Dot", 8, [1], 0], ["Mul", 8, [MOST_STEP_BYTES], 0],
        ["Mul", 8, [1], 1], ["Trunc", 8, [1], 0], ["Trunc", 8, [1], 64], ["And", 8, [1], 0],
        ["Mul", 8, [True], 0], ["Mul", 8, [1.0], 0], ["Mul", 8, "1", 0], [], None,
        ["Dot", 8, [1, 1, 1 << 19], 0],
    ],
)  # fmt: skip
def test_steps_that_cannot_be(row):
    with pytest.raises(DealerError):
        Step.from_row(row)


def test_scripts_that_are_none():
    for content in (b"", b"x", zlib.compress(b"{}"), zlib.compress(b"[" * 99_999),
                    zlib.compress(b"[]") + b"more", zlib.compress(b" [ ]")):  # fmt: skip
        with pytest.raises(DealerError):
            Script.from_bytes(content)


def test_doctor_sees_whether_a_key_is_the_dealers(running, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "_PRODUCT", "")
    dealer = running()
    own, other = GOLDEN / "key" / "public.pem", tmp_path / "other" / "public.pem"
    make_keys(other.parent)
    tls = dealer.certificates / "client"

    def state_of(**places):
        *_, check = doctor.examine(**places)
        assert check.name == "dealer's key"
        return check

    assert state_of(dealer_key=own, dealer=dealer.address, tls=tls).state is State.FINE
    wrong = state_of(dealer_key=other, dealer=dealer.address, tls=tls)
    assert wrong.state is State.PROBLEM
    assert "has another key" in wrong.found
    assert state_of(dealer_key=own).state is State.NOTE
    assert state_of(dealer_key=tmp_path / "none.pem").state is State.PROBLEM

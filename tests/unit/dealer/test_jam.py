"""Parties that try to use up the dealer: its CPU, its memory, its jobs or its connections.

Costs are CPU seconds and resident memory of processes, as the kernel counts them.
"""

import base64
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import zlib
from functools import cache

import pytest

from mpcvit.dealer import job_reader
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.job_reader import JobReader
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.keys import load_private_key
from mpcvit.dealer.limits import MOST_FULL_INFERENCES, MOST_STEP_BYTES, MOST_STEPS
from mpcvit.dealer.script import Kind, Script, Step
from mpcvit.dealer.server import MAX_CONNECTIONS_EACH
from mpcvit.dealer.table import JobLimits
from mpcvit.secure.dealing.local_dealer import LocalDealer
from mpcvit.secure.parties.roles import Role
from tests.unit.dealer.conftest import GOLDEN
from tests.unit.dealer.counting import cpu_seconds, family, peak
from tests.unit.dealer.jobs import expected, fetch, make_job, new_seeds, outline
from tests.unit.dealer.waiting import wait_until

MOST_CPU_S, MOST_MEMORY = 0.050, 20e6
MOST_WAITING = JobLimits().waiting_jobs
ROUNDS = 2  # of every attack; CPU seconds are counted in hundredths, over all of them


def script_of(row, times):
    return zlib.compress(b"[" + b",".join([row] * times) + b"]", 9)


def distinct_rows(count):
    rows = [b'["Dot",8,[%d,3,7],0]' % (5 + index) for index in range(count)]
    return zlib.compress(b"[" + b",".join(rows) + b"]", 9)


LARGEST = b'["RandBit",16,[%d],0]' % (MOST_STEP_BYTES // 16)
ATTACKS = {
    "a million and a half steps": lambda: [script_of(b'["Mul",4,[1],0]', 200_000)] * 8,
    "eight GiB for forty bytes": lambda: [script_of(b'["RandBit",16,[16777216],0]', 32)],
    "eight GiB in small steps": lambda: [script_of(LARGEST, 64)],
    "many products": lambda: [script_of(b'["Dot",16,[2800,2800,2800],0]', 1)],
    "unpacks to 300 MB": lambda: [zlib.compress(b"[" + b" " * 300_000_000, 9)],
    "unpacks to 300 MB in eight parts": lambda: [zlib.compress(b"[" + b" " * 37_500_000, 9)] * 8,
    "objects": lambda: [script_of(b"{}", 330_000)],
    "lists": lambda: [script_of(b"[]", 330_000)],
    "numbers": lambda: [script_of(b"[1]", 250_000)],
    "one long step": lambda: [script_of(b'["Mul",8,[%s1],0]' % (b"1," * 499_000), 1)],
    "one long number": lambda: [script_of(b'["Mul",8,[%s],0]' % (b"1" * 999_000), 1)],
    "one step too many": lambda: [distinct_rows(MOST_STEPS + 1)],
    "one step too many in two parts": lambda: [distinct_rows(MOST_STEPS // 2 + 1)] * 2,
    "nesting": lambda: [zlib.compress(b"[" * 999_000, 9)],
}


@cache  # it takes seconds to pack hundreds of megabytes
def scripts_of(name):
    return [base64.b64encode(script).decode() for script in ATTACKS[name]()]


def attack_of(key, name):
    """A job, well-formed but for its scripts."""
    document, scripts = json.loads(make_job(key).to_bytes()), scripts_of(name)
    return json.dumps({**document, "plan": [[script, 1] for script in scripts]}).encode()


def costs_of_reading(contents, how):
    """How reading each job ended, in a fresh process; CPU seconds and bytes that it took."""
    told = json.dumps([base64.b64encode(content).decode() for content in contents])
    command = [sys.executable, "-m", "tests.unit.dealer.counting", how]
    done = subprocess.run(command, input=told, stdout=subprocess.PIPE, check=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_reading_first_and_checking_later_is_jammed(key):
    (cost,) = costs_of_reading([attack_of(key, "a million and a half steps")], "naive")
    ended, seconds, grown = cost
    assert ended == "too many steps"
    assert seconds > 10 * MOST_CPU_S
    assert grown > 2 * MOST_MEMORY


def test_what_is_too_much_is_refused_before_it_costs_anything(key):
    costs = costs_of_reading([attack_of(key, name) for name in ATTACKS], "ours")
    for name, (ended, seconds, grown) in zip(ATTACKS, costs, strict=True):
        assert ended != "taken", name
        assert seconds < MOST_CPU_S, name
        assert grown < MOST_MEMORY, name


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A dealer's process with its own reader, its key, and its parties' clients."""
    folder = tmp_path_factory.mktemp("jam") / "dealer"
    with LocalDealer(folder) as dealer:
        key = load_private_key(folder / "keys")
        places = dealer.places()
        server, client = (
            places[role].client(patience_s=20.0) for role in (Role.MODEL_OWNER, Role.DATA_OWNER)
        )
        yield dealer, key, server, client


def go_through(key, server, client):
    seeds = new_seeds()
    job = make_job(key, seeds)
    for party in (client, server):
        party.authorise(job)
    assert fetch(server, job) == expected(seeds)


def test_a_dealer_under_attack_serves_others(local):
    dealer, key, server, client = local
    go_through(key, server, client)
    attacks = [attack_of(key, name) for name in ATTACKS]
    processes = family(dealer.process.pid)
    assert len(processes) == 2, "the dealer and its reader"
    before = {pid: peak(pid) for pid in processes}
    started = {pid: cpu_seconds(pid) for pid in processes}
    for attack in attacks * ROUNDS:
        with pytest.raises(DealerError):
            client.authorise(Forged(attack))
    taken = sum(cpu_seconds(pid) - started[pid] for pid in processes)
    assert taken / (ROUNDS * len(attacks)) < MOST_CPU_S, "TLS included"
    for pid in processes:
        assert peak(pid) - before[pid] < MOST_MEMORY
    assert family(dealer.process.pid) == processes, "no attack ended the reader"
    served = threading.Event()
    attackers = [
        threading.Thread(target=attack_until, args=(served, client, attacks)) for _ in range(2)
    ]
    for attacker in attackers:
        attacker.start()
    try:
        go_through(key, server, client)
    finally:
        served.set()
        for attacker in attackers:
            attacker.join()


class Forged:
    """Anything that a client sends as if it were a job."""

    def __init__(self, content):
        self._content = content

    def to_bytes(self):
        return self._content


def attack_until(ended, client, attacks):
    while not ended.is_set():
        for attack in attacks:
            with pytest.raises(DealerError):
                client.authorise(Forged(attack))


def test_deit_small_is_not_too_much():
    """Twelve times a layer with patches and classes, not lowered, in the 64-bit ring."""
    layer = Script.from_bytes((GOLDEN / "deit_small_layer.script").read_bytes())
    assert (len(layer.steps), layer.drawn_bytes, layer.answer_bytes) == (
        346,
        832_014_616,
        400_750_784,
    )
    script = Script(layer.steps * 12)
    assert Script.from_bytes(script.to_bytes()) == script
    with pytest.raises(DealerError, match="draws"):
        Script(layer.steps * 16)


def test_a_job_of_too_many_inferences(key):
    step = Step(kind=Kind.DOT, width=16, shape=(2000, 2000, 2000))
    assert make_job(key, script=Script((step,)), times=MOST_FULL_INFERENCES).inferences == 1000
    with pytest.raises(DealerError, match="multiply adds; a dealer allows"):
        make_job(key, script=Script((step,)), times=MOST_FULL_INFERENCES + 1)
    half = Script(tuple(Step(kind=Kind.MUL, width=8, shape=(5,)) for _ in range(MOST_STEPS // 2)))
    job = make_job(key)
    with pytest.raises(DealerError, match=r"30,000 steps; a dealer allows 20,000"):
        Job(seeds=job.seeds, start=0, plan=((half, 1),) * 3, key=job.key)


LIMITED = """
from mpcvit.dealer import job_reader
job_reader._CPU_S = 0
job_reader._limit_memory()
job_reader._limit_time()
"""


def test_a_reader_has_little_memory_and_little_time():
    code = f"{LIMITED}\nbytearray(50 << 20)\nbytearray(100 << 20)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().endswith("MemoryError")
    assert done.stderr.count("bytearray") <= 1
    done = subprocess.run([sys.executable, "-c", f"{LIMITED}\nwhile True: pass"])
    assert done.returncode == -signal.SIGXCPU


@pytest.fixture
def reader():
    reader = JobReader()
    reader.start()
    yield reader
    reader.close()


def test_certificates_take_turns_at_the_reader(key, monkeypatch):
    """One that sends as much as it may makes another wait for one of its jobs, not for all."""
    reader, order, begun, go_on = JobReader(), [], threading.Event(), threading.Event()
    job = make_job(key, new_seeds()).to_bytes()
    outline = job_reader._answer(job)

    def ask(process, content):
        order.append(content)
        begun.set()
        assert go_on.wait(10)
        return dict(outline)

    monkeypatch.setattr(reader, "_started", lambda: None)
    monkeypatch.setattr(reader, "_ask", ask)

    def send(sender):
        thread = threading.Thread(target=reader.read, args=(sender.encode(), sender))
        thread.start()
        return thread

    threads = [send("greedy") for _ in range(MAX_CONNECTIONS_EACH)]
    assert begun.wait(10)
    wait_until(lambda: reader._line_of["greedy"].waiting == MAX_CONNECTIONS_EACH - 1)
    threads.append(send("other"))
    wait_until(lambda: reader._line.waiting == 1)
    go_on.set()
    for thread in threads:
        thread.join()
    assert order.index(b"other") == 1
    assert len(order) == MAX_CONNECTIONS_EACH + 1


def test_a_reader_that_died_is_replaced(reader, key):
    job = make_job(key)
    assert reader.read(job.to_bytes(), "a") == outline(job)
    reader._process.kill()
    reader._process.wait()
    assert reader.read(job.to_bytes(), "a") == outline(job)


def test_a_reader_that_dies_of_a_job_or_hangs_refuses_it(reader, key, monkeypatch):
    job = make_job(key)
    reader.read(job.to_bytes(), "a")
    monkeypatch.setattr(job_reader, "_PATIENCE_S", 0.2)
    reader._process.send_signal(signal.SIGSTOP)
    with pytest.raises(DealerError, match="takes too long to be read"):
        reader.read(job.to_bytes(), "a")
    monkeypatch.undo()
    assert reader.read(job.to_bytes(), "a") == outline(job)


def test_a_reader_ends_with_the_dealer():
    code = (
        "from mpcvit.dealer.job_reader import JobReader\n"
        "reader = JobReader()\nreader.start()\n"
        "import os\nos.kill(os.getpid(), 9)"
    )
    # it has the same standard error, which is read until both are gone
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    assert done.returncode == -signal.SIGKILL


def cost_of(processes, attack):
    """CPU seconds and the growth of the peak memory, over all of a dealer's processes."""
    before = {pid: (cpu_seconds(pid), peak(pid)) for pid in processes}
    attack()
    return (
        sum(cpu_seconds(pid) - seconds for pid, (seconds, _) in before.items()),
        max(peak(pid) - memory for pid, (_, memory) in before.items()),
    )


def go_through_after(key, server, client):
    """A proper job of a client that has as many waiting jobs as it may have."""
    seeds = new_seeds()
    job = make_job(key, seeds)
    for party in (server, client):
        party.authorise(job)
    assert fetch(server, job) == expected(seeds)


def test_half_authorised_jobs_are_refused_at_little_cost(local):
    dealer, key, server, client = local
    go_through(key, server, client)
    jobs, refused = [make_job(key).to_bytes() for _ in range(4 * MOST_WAITING)], []

    def attack():
        for job in jobs:
            try:
                client._ask("POST", "/jobs", job)
            except LaterError as error:
                refused.append(str(error))

    seconds, grown = cost_of(family(dealer.process.pid), attack)
    assert len(refused) >= 3 * MOST_WAITING
    assert set(refused) == {"16 jobs of this client's certificate are waiting already"}
    assert seconds / len(jobs) < MOST_CPU_S, "TLS included"
    assert grown < MOST_MEMORY
    go_through_after(key, server, client)


def test_dripping_connections_cost_little_and_others_are_served_meanwhile(local):
    dealer, key, server, client = local
    go_through_after(key, server, client)
    host, port = dealer.address.split(":")
    with contextlib.ExitStack() as stack:

        def attack():
            for _ in range(MAX_CONNECTIONS_EACH - 1):  # the last place is for its proper job
                plain = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
                line = client.context.wrap_socket(plain, server_hostname=host)
                lines.append(stack.enter_context(line))
                line.sendall(b"POST /jobs HTTP/1.1\r\nContent-Length: 500000\r\n\r\n")
                line.sendall(bytes(400_000))
            for line in lines:
                for _ in range(20):
                    line.sendall(b"x")
            go_through_after(key, server, client)

        lines = []
        seconds, grown = cost_of(family(dealer.process.pid), attack)
        assert seconds / len(lines) < MOST_CPU_S, "TLS and the proper job included"
        assert grown < MOST_MEMORY


def test_floods_without_a_request_are_not_held_in_memory(local):
    dealer, key, server, client = local
    go_through_after(key, server, client)
    host, port = dealer.address.split(":")

    def attack():
        for _ in range(MAX_CONNECTIONS_EACH - 1):
            plain = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
            line = stack.enter_context(client.context.wrap_socket(plain, server_hostname=host))
            with contextlib.suppress(OSError):  # it may hang up meanwhile
                line.sendall(b"x" * 3_000_000)
        go_through_after(key, server, client)

    with contextlib.ExitStack() as stack:
        _, grown = cost_of(family(dealer.process.pid), attack)
    assert grown < MOST_MEMORY

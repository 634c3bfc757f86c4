"""The door: strangers cannot jam it, and allowed clients come in meanwhile."""

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest

from mpcvit.hosts.credentials import Credentials
from mpcvit.hosts.door import DoorLimits, end_tasks
from tests.unit.hosts.entrance import (
    HELLO,
    NONSENSE,
    PATIENCE_S,
    WELCOME,
    Entrance,
    closing,
    come_in,
    come_in_at_last,
    door_of,
    greet,
    is_open,
    stranger,
)


def test_an_allowed_client_comes_in_and_its_place_is_free_afterwards(certs):
    with Entrance(certs) as entrance:
        for _ in range(3):
            with come_in(entrance.port, certs / "client"):
                assert sum(entrance.door._guests.values()) == 1
            entrance.wait_for(lambda: not entrance.door._guests)
        assert not entrance.notes
        assert entrance.door.counts.accepted == 3


def test_a_client_comes_in_past_idle_connections(certs):
    with (
        Entrance(certs) as entrance,
        closing([stranger(entrance.port) for _ in range(200)]) as idle,
    ):
        come_in_at_last(entrance.port, certs / "client")
        assert len(entrance.door._strangers) <= DoorLimits().strangers_per_address
        assert entrance.door.counts.evicted >= 200 - DoorLimits().strangers_per_address
        entrance.wait_for(lambda: sum(map(is_open, idle)) <= DoorLimits().strangers_per_address)


def test_a_client_comes_in_while_others_say_nonsense(certs):
    visits, done = [], threading.Event()

    def shout(port):
        count = 0
        while count < 1000 or len(visits) < 2:
            with contextlib.suppress(OSError):
                stranger(port, NONSENSE).close()
            count += 1
        done.set()

    with Entrance(certs) as entrance:
        thread = threading.Thread(target=shout, args=(entrance.port,))
        thread.start()
        while not done.is_set():
            visits.append(come_in_at_last(entrance.port, certs / "client"))
        thread.join()
        come_in_at_last(entrance.port, certs / "client")  # after all who waited to be accepted
        entrance.wait_for(lambda: not entrance.door._strangers)
        assert entrance.door.counts.accepted >= 1000


def hello_of_tls():
    """Return the first bytes of a genuine handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaking = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        shaking.do_handshake()
    return outgoing.read()


def test_a_client_comes_in_past_handshakes_that_are_fed_in_drops(certs):
    content, stop = hello_of_tls(), threading.Event()

    def drip(lines):
        for place in range(len(content)):
            for line in lines:
                with contextlib.suppress(OSError):
                    line.send(content[place : place + 1])
            if stop.wait(0.01):
                return

    with Entrance(certs) as entrance, closing([]) as lines:

        def is_over_after_a_while():
            entrance.let_pass(0.1)
            return not entrance.door._strangers

        lines += [stranger(entrance.port, host=f"127.0.0.{2 + n % 20}") for n in range(100)]
        thread = threading.Thread(target=drip, args=(lines,))
        thread.start()
        come_in_at_last(entrance.port, certs / "client")
        # a byte now and then prolongs nothing
        entrance.wait_for(is_over_after_a_while)
        stop.set()
        thread.join()
        assert "said nothing usable within 10 s" in entrance.notes


def test_a_client_is_not_pushed_out_by_those_who_come_after_it(certs):
    """Others fill the waiting room again and again while the client's handshake is slow."""
    limits = DoorLimits(strangers=8, strangers_per_address=4)
    with Entrance(certs, limits) as entrance:
        slow = stranger(entrance.port, host="127.0.0.9")
        with closing([stranger(entrance.port, host=f"127.0.0.{2 + n % 3}") for n in range(60)]):
            entrance.wait_for(lambda: entrance.door.counts.accepted == 61)
            assert is_open(slow)
            slow.setblocking(True)
            context = Credentials(folder=certs / "client").dialling_context()
            with context.wrap_socket(slow, server_hostname="localhost") as line:
                line.sendall(HELLO)
                assert line.recv(2) == WELCOME


def test_the_oldest_stranger_makes_room(certs):
    limits = DoorLimits(strangers=3, strangers_per_address=3)
    with Entrance(certs, limits) as entrance, closing([]) as lines:
        for host in range(2, 7):
            lines.append(stranger(entrance.port, host=f"127.0.0.{host}"))
            entrance.wait_for(lambda: entrance.door.counts.accepted == len(lines))
        entrance.wait_for(lambda: [is_open(line) for line in lines] == [False] * 2 + [True] * 3)
        assert entrance.door.counts.evicted == 2


def test_one_address_has_its_share_alone(certs):
    limits = DoorLimits(strangers=10, strangers_per_address=2)
    hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.3", "127.0.0.3", "127.0.0.3"]
    with Entrance(certs, limits) as entrance, closing([]) as lines:
        for host in hosts:
            lines.append(stranger(entrance.port, host=host))
            entrance.wait_for(lambda: entrance.door.counts.accepted == len(lines))
        expected = [True, False, False, True, True]
        entrance.wait_for(lambda: [is_open(line) for line in lines] == expected)


def test_a_burst_of_more_than_fits_closes_all_that_it_sends_away(certs):
    """Some are sent away before their turn has come even once."""
    limits = DoorLimits(strangers=2, strangers_per_address=2)
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    lines = [stranger(listener.getsockname()[1]) for _ in range(50)]

    async def burst():
        door = door_of(listener, certs / "server", lambda *_: None, limits)
        for _ in lines:
            connection, (host, port) = listener.accept()
            door._enter(connection, f"{host}:{port}", greet)
        while [is_open(line) for line in lines] != [False] * 48 + [True] * 2:
            await asyncio.sleep(0.01)
        await end_tasks(door._tasks)
        assert not door._tasks

    with listener, closing(lines):
        asyncio.run(asyncio.wait_for(burst(), PATIENCE_S))


def test_one_client_has_so_many_places_and_no_more(certs):
    limits = DoorLimits(connections_per_peer=2)
    with Entrance(certs, limits) as entrance, closing([]) as lines:
        lines += [come_in(entrance.port, certs / "client") for _ in range(2)]
        with pytest.raises(OSError, match="sent away"):
            come_in(entrance.port, certs / "client")
        assert entrance.notes == ["'client' has too many connections"]
        lines.append(come_in(entrance.port, certs / "second"))
        lines.pop(0).close()
        come_in_at_last(entrance.port, certs / "client")


def test_places_of_clients_are_apart_from_those_of_strangers(certs):
    limits = DoorLimits(strangers=2, strangers_per_address=2)
    with Entrance(certs, limits) as entrance, closing([]) as lines:
        lines += [come_in(entrance.port, certs / "client") for _ in range(5)]
        lines += [stranger(entrance.port) for _ in range(5)]
        entrance.wait_for(lambda: entrance.door.counts.accepted == 10)
        assert all(map(is_open, lines[:5]))
        assert sum(entrance.door._guests.values()) == 5


@pytest.mark.parametrize("name", ["server", "dealer", "foreign", "revoked"])
def test_a_certificate_that_is_not_allowed_is_sent_away(certs, foreign, name):
    folder = foreign / "client" if name == "foreign" else certs / name
    changes = {}
    if name == "revoked":
        folder, changes = certs / "client", {"admit": lambda peer: "not on the list"}
    with Entrance(certs, **changes) as entrance:
        with pytest.raises(OSError, match=r"sent away|alert|reset"):
            come_in(entrance.port, folder, trusted=certs / "client" / "ca.pem")
        entrance.wait_for(lambda: entrance.notes)
        assert "certificate" in entrance.notes[0] or "not on the list" in entrance.notes[0]


async def explain(stream, error):
    stream.writer.write(str(error).encode() + b"\n")


def sentence_for(port, folder, first, meanwhile=lambda: None):
    """Return what a client reads that is sent away, however late it reads."""
    context = Credentials(folder=folder).dialling_context()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as line,
    ):
        line.sendall(first)
        meanwhile()
        time.sleep(0.2)
        return line.makefile("rb").readline().decode().strip()


def test_a_certified_peer_that_may_not_enter_learns_why(certs):
    """Even if much of what it sent is unread then."""
    unread = bytes(6_000_000)
    refusing = {"explain": explain, "admit": lambda peer: "not on the list"}
    with Entrance(certs, **refusing) as entrance:
        assert sentence_for(entrance.port, certs / "client", HELLO + unread) == "not on the list"
    with Entrance(certs, explain=explain) as entrance:
        assert sentence_for(entrance.port, certs / "client", b"olleh" + unread) == (
            "received no hello"
        )
    with Entrance(certs, explain=explain) as entrance:
        late = entrance.let_arrival_pass
        assert "within 10 s" in sentence_for(entrance.port, certs / "client", HELLO[:2], late)


def test_all_peers_together_have_so_many_places(certs):
    limits = DoorLimits(connections=2)
    with Entrance(certs, limits) as entrance, closing([]) as lines:
        lines += [come_in(entrance.port, certs / name) for name in ("client", "second")]
        with pytest.raises(OSError, match="sent away"):
            come_in(entrance.port, certs / "client")
        assert entrance.notes == ["there are too many connections at the moment"]


def test_the_first_message_has_the_rest_of_the_time(certs):
    with Entrance(certs) as entrance:
        late = entrance.let_arrival_pass
        with pytest.raises(OSError, match="sent away"):
            come_in(entrance.port, certs / "client", first=HELLO[:2], meanwhile=late)
        assert entrance.notes == ["said nothing usable within 10 s"]
        with pytest.raises(OSError, match="sent away"):
            come_in(entrance.port, certs / "client", first=b"olleh")
        assert entrance.notes[1:] == ["received no hello"]


def test_a_guest_may_stay_longer_than_an_arrival(certs):
    with Entrance(certs) as entrance, come_in(entrance.port, certs / "client") as line:
        entrance.let_arrival_pass()
        come_in(entrance.port, certs / "second").close()  # by then the first would be gone
        assert is_open(line)


def fail(*_):
    raise OSError("the disk is full")


@pytest.mark.parametrize("part", ["note", "admit", "context"])
def test_a_part_that_fails_does_not_stop_the_door(certs, part):
    with Entrance(certs) as entrance:
        working = getattr(entrance.door, f"_{part}")
        setattr(entrance.door, f"_{part}", fail)
        for _ in range(3):
            stranger(entrance.port, NONSENSE).close()
        with contextlib.suppress(OSError):
            come_in(entrance.port, certs / "client").close()
        entrance.wait_for(lambda: entrance.door.counts.refused >= 3)
        setattr(entrance.door, f"_{part}", working)
        come_in_at_last(entrance.port, certs / "client")


def test_a_guest_whose_service_fails_is_closed_and_the_next_one_comes_in(certs):
    failures = iter([ValueError("a bug"), OSError("the line broke")])

    async def receive(guest):
        if error := next(failures, None):
            raise error
        await greet(guest)

    with Entrance(certs, receive=receive) as entrance:
        for _ in range(2):
            with pytest.raises(OSError, match="sent away"):
                come_in(entrance.port, certs / "client")
        come_in_at_last(entrance.port, certs / "client")
        assert entrance.notes[0] == "ended by an unexpected ValueError"


def test_lines_about_strangers_are_limited_and_the_others_counted(certs):
    with Entrance(certs, DoorLimits(log_lines_per_minute=3)) as entrance:
        for _ in range(50):
            stranger(entrance.port, NONSENSE).close()
        entrance.wait_for(lambda: entrance.door.counts.refused + entrance.door.counts.evicted == 50)
        assert len(entrance.notes) == 3
        left_out = entrance.door.counts.refused - 3
        entrance.door._lines._at -= 60  # a minute later
        stranger(entrance.port, NONSENSE).close()
        entrance.wait_for(lambda: len(entrance.notes) == 4)
        assert entrance.notes[3].endswith(f"({left_out} more were not logged)")


CHILD = """
import asyncio, resource, socket, sys
from pathlib import Path
from mpcvit.hosts.door import DoorLimits
sys.path.insert(0, sys.argv[3])
from tests.unit.hosts.entrance import door_of, greet

async def main():
    listener = socket.socket(fileno=int(sys.argv[1]))
    limits = DoorLimits(strangers=1000, strangers_per_address=1000)
    door = door_of(listener, Path(sys.argv[2]) / "server", lambda *_: None, limits)
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
    running = asyncio.ensure_future(door.run(greet))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    assert not running.done()
    print(door.counts.out_of_resources, flush=True)
    running.cancel()

asyncio.run(main())
"""


def test_a_lack_of_descriptors_is_waited_out(certs, request):
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    arguments = [str(listener.fileno()), str(certs), str(request.config.rootpath)]
    port = listener.getsockname()[1]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments],
        pass_fds=[listener.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    listener.close()
    with child:
        try:
            assert child.stdout.readline() == "ready\n"
            come_in(port, certs / "client").close()
            with closing([stranger(port) for _ in range(100)]):
                come_in_at_last(port, certs / "client")
                output, _ = child.communicate("end\n", timeout=PATIENCE_S)
            assert int(output) > 0
            assert child.returncode == 0
        finally:
            child.kill()

"""A WAN on loopback: a relay that delays bytes and limits how many pass per second.

The relay is a process of its own, so that nothing else delays it. Parties get
its addresses in place of each other's. Each direction between two parties
is one line, shared by all their connections:

    a piece of n bytes leaves the line at  max(now, line free) + n / bandwidth
    and arrives  round_trip / 2  later, plus up to `jitter` more, never overtaking

No privilege and no kernel module is needed.
"""

import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import Any

from mpcvit.artifacts.profile import NetworkLink
from mpcvit.secure.parties.roles import Address
from mpcvit.secure.parties.service_process import ServiceProcess
from mpcvit.secure.parties.sockets import UNIX, dial, listen

_PIECE_BYTES = 1 << 16
_BACKLOG_S = 0.02  # beyond this the relay stops reading, as a full router would
_DIAL_S = 60.0
_OVERSLEPT_S = 2e-4


@dataclass(frozen=True, kw_only=True)
class Route:
    """A way from one that dials to one that is dialled, whose address is `target`."""

    dialler: str
    dialled: str
    target: Address

    @property
    def own_address(self) -> Address:
        """Where the relay listens: beside the target's socket, or on a port of loopback."""
        is_socket = self.target.startswith(UNIX)
        return f"{self.target}.{self.dialler}" if is_socket else "127.0.0.1:0"


class Relay(ServiceProcess):
    """Starts the relay; ends it with `close`, or at the latest with this process."""

    def __init__(self, network: NetworkLink, routes: Sequence[Route]) -> None:
        super().__init__(
            "mpcvit.secure.parties.wan",
            what="the relay that emulates the network",
            request={"network": asdict(network), "routes": [asdict(route) for route in routes]},
        )
        self.addresses: Mapping[Route, Address] = dict(zip(routes, self.answer, strict=True))


class _Line:
    """One direction between two parties."""

    def __init__(self, network: NetworkLink) -> None:
        self._network = network
        self._free_at = 0.0
        self._lock = threading.Lock()

    def schedule(self, count: int) -> tuple[float, float]:
        """Return when a piece that comes now arrives, and how far behind the line then is."""
        network, now = self._network, time.monotonic()
        with self._lock:
            start = max(now, self._free_at)
            if network.bandwidth_bytes_per_s:
                start += count / network.bandwidth_bytes_per_s
            self._free_at = start
        late = network.round_trip_ms / 2 + random.uniform(0, network.jitter_ms)
        return start + late / 1000, start - now


def _pump(source: socket.socket, target: socket.socket, line: _Line) -> None:
    """Carry bytes one way until the source ends."""
    pieces: SimpleQueue[tuple[float, bytes]] = SimpleQueue()
    threading.Thread(target=_deliver, args=(pieces, target), daemon=True).start()
    arrives = 0.0
    try:
        while piece := source.recv(_PIECE_BYTES):
            earliest, behind_s = line.schedule(len(piece))
            arrives = max(arrives, earliest)
            pieces.put((arrives, piece))
            if behind_s > _BACKLOG_S:
                time.sleep(behind_s - _BACKLOG_S / 2)
    except OSError:
        pass  # the other side hung up; so does this one
    pieces.put((arrives, b""))


def _deliver(pieces: "SimpleQueue[tuple[float, bytes]]", target: socket.socket) -> None:
    try:
        while True:
            arrives, piece = pieces.get()
            _sleep_until(arrives)
            if not piece:
                target.shutdown(socket.SHUT_RDWR)
                return
            target.sendall(piece)
    except OSError:
        target.close()


def _sleep_until(moment: float) -> None:
    """Sleep, and watch the clock for the last bit, which the kernel would oversleep."""
    if (wait := moment - time.monotonic() - _OVERSLEPT_S) > 0:
        time.sleep(wait)
    while time.monotonic() < moment:
        time.sleep(0)


def _accept(server: socket.socket, target: Address, forth: _Line, back: _Line) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_join, args=(client, target, forth, back), daemon=True).start()


def _join(client: socket.socket, target: Address, forth: _Line, back: _Line) -> None:
    """Dial the target, which may not be up yet, and carry bytes both ways."""
    deadline = time.monotonic() + _DIAL_S
    while True:
        try:
            server = dial(target)
            break
        except OSError:
            if time.monotonic() > deadline:
                client.close()
                return
            time.sleep(0.02)
    if client.family != socket.AF_UNIX:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_pump, args=(client, server, forth), daemon=True).start()
    threading.Thread(target=_pump, args=(server, client, back), daemon=True).start()


def main() -> None:
    """Serve the routes that one line of standard input names, until that input ends."""
    job: dict[str, Any] = json.loads(sys.stdin.readline())
    network = NetworkLink(**job["network"])
    routes = [Route(**route) for route in job["routes"]]
    ends = {(a.dialler, a.dialled) for a in routes} | {(a.dialled, a.dialler) for a in routes}
    lines = {end: _Line(network) for end in ends}
    servers = [listen(route.own_address) for route in routes]
    for route, server in zip(routes, servers, strict=True):
        forth, back = lines[route.dialler, route.dialled], lines[route.dialled, route.dialler]
        threading.Thread(
            target=_accept, args=(server, route.target, forth, back), daemon=True
        ).start()
    print(json.dumps([_address(*pair) for pair in zip(routes, servers, strict=True)]), flush=True)
    sys.stdin.read()
    os._exit(0)


def _address(route: Route, server: socket.socket) -> Address:
    if server.family == socket.AF_UNIX:
        return route.own_address
    return "{}:{}".format(*server.getsockname())


if __name__ == "__main__":
    main()

"""What a server has done so far, as Prometheus text on loopback."""

import threading
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from mpcvit.errors import UserError
from mpcvit.secure.parties.roles import Address, is_this_machine, resolve

_PREFIX = "mpcvit_"


class ServerMetrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.sessions = self._counter("sessions", "Sessions by how they ended", ("ended",))
        self.images = self._counter("images", "Images that were answered")
        self.sent_bytes = self._counter("sent_bytes", "Bytes sent during computations")
        self.received_bytes = self._counter("received_bytes", "Bytes received during computations")
        self.refused = self._counter("refused", "Clients that were refused", ("why",))
        self.log_errors = self._counter("log_errors", "Log lines that could not be written")
        self._serving: tuple[Any, ...] = ()

    def follow(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a value that is read whenever somebody asks."""
        Gauge(_PREFIX + name, text, registry=self._registry).set_function(value)

    def serve(self, address: Address) -> None:
        """Answer HTTP requests at an address of this machine until `close`."""
        host, port = resolve(address)
        if not is_this_machine(host):
            raise UserError(
                f"metrics are shown on this machine alone, not at {address}; name 127.0.0.1"
            )
        try:
            self._serving = start_http_server(port, host, registry=self._registry)
        except OSError as error:
            raise UserError(
                f"cannot show metrics at {address}: {error.strerror or error}; choose another "
                "address with --metrics, or none"
            ) from error

    def close(self) -> None:
        if self._serving:
            server, thread = self._serving
            server.shutdown()
            server.server_close()
            if isinstance(thread, threading.Thread):
                thread.join(timeout=5)
            self._serving = ()

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self._registry)


def read_status(address: Address) -> dict[str, float]:
    """Ask a running server for its numbers, by name."""
    resolve(address)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    found = {}
    try:
        with direct.open(f"http://{address}/metrics", timeout=5) as answer:
            text = answer.read(1 << 20).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(_PREFIX) and not sample.name.endswith("_created"):
                    labels = "".join(f" {value}" for value in sample.labels.values())
                    name = sample.name.removeprefix(_PREFIX).removesuffix("_total")
                    found[name + labels] = sample.value
    except (OSError, HTTPException, ValueError):
        found = {}  # somebody else may answer there
    if not found:
        raise UserError(
            f"no server shows its numbers at {address}; start it with --metrics {address}"
        )
    return found

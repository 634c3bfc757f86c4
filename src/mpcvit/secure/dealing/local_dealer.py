"""A dealer as a process on this machine, for runs whose parties are on it too.

It is the one that `mpcvit dealer serve` runs, with keys and certificates of its
own that end with it. Nothing about it is private, as nothing is on one machine.
"""

import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mpcvit.dealer.keys import PUBLIC_FILE, load_private_key, make_keys
from mpcvit.dealer.server import serve_dealer
from mpcvit.dealer.table import JobLimits, JobTable
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.credentials import Credentials, protect_memory
from mpcvit.hosts.peer import CLIENT, DEALER, SERVER
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.parties.roles import CERTIFIED, Address, Role
from mpcvit.secure.parties.service_process import ServiceProcess


class LocalDealer(ServiceProcess):
    """Starts a dealer; ends it with `close`, or at the latest with this process."""

    def __init__(self, folder: Path, *, workers: int = 1) -> None:
        self._folder = folder
        make_keys(folder / "keys")
        make_certificates(folder / "certs", names=(SERVER, CLIENT, DEALER), days=2)
        super().__init__(
            "mpcvit.secure.dealing.local_dealer",
            *(str(folder), str(workers)),
            what="the dealer",
            environment={"OPENBLAS_NUM_THREADS": "1"},
        )
        self.address: Address = self.answer

    def places(self, dialled: Mapping[Role, Address] | None = None) -> dict[Role, DealerEndpoint]:
        """Return where each party finds the dealer; `dialled` is the address that it dials."""
        return {
            role: DealerEndpoint(
                address=self.address,
                key=str(self._folder / "keys" / PUBLIC_FILE),
                tls=str(self._folder / "certs" / CERTIFIED[role]),
                dialled=(dialled or {}).get(role, ""),
            )
            for role in (Role.MODEL_OWNER, Role.DATA_OWNER)
        }


@contextmanager
def local_places() -> Iterator[dict[Role, DealerEndpoint]]:
    """Start a dealer in a folder of its own, and give where each party finds it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mpcvit-")))
        yield stack.enter_context(LocalDealer(folder / "dealer")).places()


def main() -> None:
    """Serve from a folder, in a number of processes, until standard input ends."""
    protect_memory()
    folder, workers = Path(sys.argv[1]), int(sys.argv[2])
    key = load_private_key(folder / "keys")
    table = JobTable(folder / "jobs.sqlite", key, JobLimits(jobs_per_minute=10_000))
    credentials = Credentials(folder=folder / "certs" / DEALER)
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps("{}:{}".format(*listener.getsockname())), flush=True)
    stop = threading.Event()
    threading.Thread(
        target=serve_dealer,
        args=(listener, credentials.listening_context, table, key.public.fingerprint),
        kwargs={"stop": stop, "workers": workers},
        daemon=True,
    ).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()

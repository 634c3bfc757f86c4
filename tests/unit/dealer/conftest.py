"""A dealer in a thread, its key, and certificates for all three."""

import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpcvit.dealer.keys import load_private_key
from mpcvit.dealer.party.client import DealerClient
from mpcvit.dealer.server import serve_dealer
from mpcvit.dealer.table import JobLimits, JobTable
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.credentials import Credentials
from mpcvit.hosts.peer import CLIENT, DEALER, SERVER

GOLDEN = Path(__file__).parents[2] / "golden" / "dealer"
ALL = (SERVER, CLIENT, DEALER)


@pytest.fixture(scope="session")
def key():
    return load_private_key(GOLDEN / "key")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dealer") / "certs"
    make_certificates(folder, names=ALL)
    return folder


class Running:
    """A dealer that can be asked, stopped and started again."""

    def __init__(self, key, certificates, folder, limits, settings):
        self.key, self.certificates, self.limits = key, certificates, limits
        self.settings = settings
        self.records = folder / "jobs.sqlite"
        self.address, self.log = "", []
        self.start()

    def start(self):
        self.table = JobTable(self.records, self.key, self.limits)
        place = ("127.0.0.1", int(self.address.rpartition(":")[2] or 0))
        self._listener = socket.create_server(place)
        self.address = "{}:{}".format(*self._listener.getsockname())
        context = Credentials(folder=self.certificates / "dealer").listening_context
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=serve_dealer,
            args=(self._listener, context, self.table, self.key.public.fingerprint),
            kwargs={
                **{"stop": self._stop, "log": self.log.append, "stall_s": 5.0},
                **self.settings,
            },
        )
        self._thread.start()

    def stop(self):
        self._stop.set()
        self._thread.join()
        self._listener.close()

    def client(self, party, certificates=None, patience_s=5.0, **changes):
        folder = (certificates or self.certificates) / party
        arguments = {
            "address": self.address,
            "fingerprint": self.key.public.fingerprint,
            "context": Credentials(folder=folder).dealer_context(),
            "patience_s": patience_s,
        }
        return DealerClient(**{**arguments, **changes})


@pytest.fixture
def running(key, certificates, tmp_path):
    """Makes dealers; all are stopped at the end."""
    with _many(key, certificates, tmp_path) as make:
        yield make


@contextmanager
def _many(key, certificates, folder):
    made = []

    def make(**changes):
        """Limits of jobs, and settings of the dealer."""
        limits = {name: value for name, value in changes.items() if hasattr(JobLimits, name)}
        settings = {name: value for name, value in changes.items() if name not in limits}
        made.append(Running(key, certificates, folder, JobLimits(**limits), settings))
        return made[-1]

    try:
        yield make
    finally:
        for dealer in made:
            dealer.stop()


@pytest.fixture
def dealer(running):
    return running()

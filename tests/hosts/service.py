"""A server and its clients, as processes that a test starts, watches and looks after."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import mpcvit
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.classifier import Classifier
from mpcvit.dealer.keys import PUBLIC_FILE, make_keys
from mpcvit.errors import UserError
from mpcvit.hosts.certificates import make_certificates
from mpcvit.secure.parties.roles import free_addresses
from mpcvit.secure.parties.wan import Relay, Route
from mpcvit.secure.service.metrics import read_status
from tests.models import random_pixels, small_checkpoint
from tests.two_party.conftest import ARCHITECTURE, CONFIG
from tests.two_party.processes import working_below

CLIENT_PROGRAM = Path(__file__).with_name("client.py")
LONG_S = 120.0  # until a test calls a wait endless; says nothing about speed
SLOW = NetworkLink(round_trip_ms=40.0)  # an image takes 5 s, so that faults strike within a run


@dataclass(frozen=True, kw_only=True)
class Site:
    """A model, pictures and certificates; and what the model says of the pictures."""

    folder: Path
    pixels: np.ndarray
    expected: np.ndarray

    @property
    def model(self):
        return self.folder / "model.safetensors"

    @property
    def certs(self):
        return self.folder / "certs"

    @property
    def photo(self):
        return self.folder / "photo.png"


def make_site(folder, *, names=("server", "client", "other", "third", "fourth", "dealer"), **hosts):
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    checkpoint.save(folder / "model.safetensors")
    pixels = random_pixels(CONFIG, 4)
    Image.fromarray(pixels[0]).save(folder / "photo.png")
    make_certificates(folder / "certs", names=names, **hosts)
    classifier = Classifier(checkpoint)
    expected = np.asarray(classifier(classifier.preprocess(list(pixels))))
    return Site(folder=folder, pixels=pixels, expected=expected)


class Served:
    """`mpcvit serve` as a process of its own, with its log and its temporary folder."""

    def __init__(
        self,
        site,
        folder,
        *arguments,
        clients=2,
        profile="semi2k",
        listen=None,
        within=(),
        stdout=None,
        stderr=None,
        metrics=True,
        tls=None,
    ):
        own, numbers = free_addresses(2)
        self.address = listen or own
        self.metrics = numbers if metrics else "none"
        folder.mkdir(parents=True, exist_ok=True)
        self.temporary = folder / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self._out, self._notes = stdout or folder / "log", stderr or folder / "notes"
        with self._out.open("wb") as out, self._notes.open("wb") as notes:
            self.process = subprocess.Popen(
                [
                    *(*within, sys.executable, "-m", "mpcvit", "serve", site.model, "--json"),
                    *("--listen", self.address, "--tls", tls or site.certs / "server"),
                    *("--profile", profile, "--clients", str(clients), "--reveal", "logits"),
                    *("--metrics", self.metrics, *arguments),
                ],
                stdout=out,
                stderr=notes,
                env={
                    **os.environ,
                    "TMPDIR": str(self.temporary),
                    "XDG_STATE_HOME": str(folder / "state"),
                },
            )
        self._clients = clients

    def wait_until_open(self):
        """Return once every place has its party."""
        wait_until(lambda: "serving" in self.notes() or self.process.poll() is not None)
        assert self.process.poll() is None, self.notes()
        self.wait_until_idle()
        return self

    def wait_until_idle(self):
        wait_until(lambda: not self.serving() and self._count_ready() == self._clients)

    def _count_ready(self):
        if self.metrics == "none":  # then those that still load the model count too
            return len(self.standby())
        with contextlib.suppress(UserError):
            return self.status().get("parties_ready")
        return 0

    def notes(self):
        return self._notes.read_text()

    def log(self):
        return [json.loads(line) for line in self._out.read_text().splitlines()]

    def visits(self):
        """The lines about clients that said hello; those about strangers name no certificate."""
        return [line for line in self.log() if line["certificate"]]

    def wait_for_visits(self, count, timeout_s=LONG_S):
        wait_until(lambda: len(self.visits()) >= count, timeout_s)
        return self.visits()

    def status(self):
        return read_status(self.metrics)

    def parties(self):
        """The folders of the parties that live, by process id."""
        found = {}
        for process in working_below(self.temporary):
            with contextlib.suppress(OSError):
                found[process] = Path(os.readlink(f"/proc/{process}/cwd"))
        return found

    def serving(self):
        """The process ids of the parties behind sessions."""
        return [pid for pid, folder in self.parties().items() if (folder / "tunnel.sock").exists()]

    def standby(self):
        return [pid for pid in self.parties() if pid not in self.serving()]

    def hang_up(self):
        self.process.send_signal(signal.SIGHUP)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        try:
            return self.wait_until_open()
        except BaseException:
            self.kill()
            raise

    def __exit__(self, kind, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop:\n{self.notes()}") from None
        if kind is None:
            assert code == 0, self.notes()
            self.assert_nothing_left()

    def assert_nothing_left(self):
        """No process of the server's lives, and its temporary folder is empty."""
        wait_until(lambda: not self.parties() and not list(self.temporary.iterdir()), 15)


class Dealing:
    """`mpcvit dealer serve` as a process of its own."""

    def __init__(self, site, folder, listen=None):
        self.address = listen or free_addresses(1)[0]
        self.key = folder / "keys" / PUBLIC_FILE
        if not self.key.exists():
            make_keys(folder / "keys")
        self._notes = folder / "notes"
        with self._notes.open("wb") as notes:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "mpcvit", "dealer", "serve", "--listen", self.address),
                    *("--keys", folder / "keys", "--tls", site.certs / "dealer"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=notes,
            )
        wait_until(lambda: "dealing at" in self._notes.read_text())

    @property
    def options(self):
        return ("--dealer", self.address, "--dealer-key", self.key)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


class _Client:
    """One prediction. Its steps come one by one; the last one says how it ended."""

    def __init__(self, images):
        self.images = images
        self.steps = []
        self._changed = threading.Condition()

    def _note(self, step):
        with self._changed:
            self.steps.append(step)
            self._changed.notify_all()

    def wait_for(self, what, done=0, timeout_s=LONG_S):
        """Return the first step of a kind, at or beyond a count."""

        def found():
            for step in self.steps:
                if step["what"].startswith(what) and step.get("done", 0) >= done:
                    return step
            return None

        def over():
            return found() or (self.steps and self.steps[-1]["what"] in ("failed", "answered"))

        with self._changed:
            self._changed.wait_for(over, timeout_s)
        step = found()
        assert step is not None, (what, self.steps[-3:])
        return step

    def wait_until_running(self):
        return self.wait_for("running", 2)

    def answer(self, timeout_s=LONG_S):
        return np.asarray(self.wait_for("answered", timeout_s=timeout_s)["logits"])

    def error(self, timeout_s=LONG_S):
        return self.wait_for("failed", timeout_s=timeout_s)["error"]

    def assert_right(self, site):
        from tests.tolerances import FXP18, assert_close

        assert_close(self.answer(), site.expected[: self.images], FXP18)


class Client(_Client):
    """A prediction in a thread of this process."""

    def __init__(self, site, server, name="client", images=1, profile="semi2k", **options):
        super().__init__(images)
        options |= {"server": server, "tls": site.certs / name, "profile": profile}
        self._thread = threading.Thread(
            target=self._predict, args=(site.pixels[:images], options), daemon=True
        )
        self._thread.start()

    def _predict(self, pixels, options):
        def progress(what, done, total):
            self._note({"what": what, "done": done})

        try:
            result = mpcvit.predict(pixels, progress=progress, **options)
        except UserError as error:
            self._note({"what": "failed", "error": str(error)})
        else:
            self._note({"what": "answered", "logits": result.logits})


class ClientProcess(_Client):
    """A prediction in a process of its own, which can be killed or be in another namespace."""

    def __init__(
        self,
        site,
        server,
        folder,
        name="client",
        images=1,
        profile="semi2k",
        network=None,
        within=(),
        **options,
    ):
        super().__init__(images)
        folder.mkdir(parents=True)
        self.temporary = folder
        task = {
            "pixels": site.pixels[:images].tolist(),
            "server": server,
            "tls": str(site.certs / name),
            "network": network,
            "options": {"profile": profile, **options},
        }
        self.process = subprocess.Popen(
            [*within, sys.executable, CLIENT_PROGRAM, json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder)},
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def start(self):
        self.wait_for("loaded")
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()
        return self

    def kill(self):
        self.process.kill()

    def _read(self):
        with self.process.stdout as lines:
            for line in lines:
                self._note(json.loads(line))
        self.process.wait()
        if self.steps[-1]["what"] != "answered":
            self._note({"what": "failed", "error": "the client's process ended"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self._thread.join()
        self.process.stdin.close()


@contextlib.contextmanager
def line_to(address, network=SLOW):
    """Give the emulated line to an address: a relay, where SIGSTOP cuts and SIGCONT mends."""
    route = Route(dialler="client", dialled="server", target=address)
    with Relay(network, [route]) as relay:
        try:
            yield relay.addresses[route], relay.process
        finally:
            relay.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def lines_to(address, count, network=SLOW):
    """Give several lines to an address, each with its bandwidth to itself."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(line_to(address, network))[0] for _ in range(count)]


def wait_until(condition, timeout_s=LONG_S):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)

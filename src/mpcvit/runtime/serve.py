"""`mpcvit.serve`: offer a model to one client after another.

This process holds the port, hears clients out and keeps the log. The model's
party is a process of its own, one for each client, loaded in advance and
supervised: whatever a client does to it, the next one finds another.
"""

import json
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from secrets import token_hex
from typing import Any

from mpcvit.dealer.errors import DealerError
from mpcvit.errors import UserError
from mpcvit.lowering.engine import EngineChoice, with_engine
from mpcvit.profile import Profile, load_profile
from mpcvit.run_record import Reveal
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.events import Journal
from mpcvit.runtime.hosts import find_dealer, require_for_two_hosts, require_protected, told
from mpcvit.runtime.processes import PartyProcess, wait_until_ready, watch
from mpcvit.runtime.rendezvous import Answer, Hello, Line, Verdict, Watchdog, accept
from mpcvit.runtime.roles import Address, Role, require_free, resolve
from mpcvit.runtime.run import AnyModel, default_for, engine_of, own_model
from mpcvit.runtime.terms import Terms, difference, terms_of
from mpcvit.runtime.tls import Credentials, load_credentials

_HELLO_S = 10.0  # for TLS and the hello
_MOST_STRANGERS = 32  # connections that have not yet said hello
_LOOK_UP_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Visit:
    """A line of the log: who came, what it cost, how it ended. Never a share or a value."""

    time: str
    peer: Address
    certificate: str  # the name in it
    images: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    exchanges: int = 0
    seconds: float
    ended: str  # "done", or why not

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        """
        >>> print(Visit(time="now", peer="10.0.0.1:5", certificate="", seconds=1.5, ended="done"))
        now peer=10.0.0.1:5 certificate="" images=0 sent_bytes=0 received_bytes=0 exchanges=0 \
seconds=1.5 ended="done"
        """
        rest = (name for name in self.to_dict() if name != "time")
        return " ".join([self.time, *(f"{name}={self._shown(name)}" for name in rest)])

    def _shown(self, name: str) -> str:
        value = getattr(self, name)
        return json.dumps(value) if name in ("certificate", "ended") else str(value)


def serve(
    model: AnyModel,
    *,
    listen: Address,
    tls: str | Path | None = None,
    profile: str | Path | Profile | None = None,
    reveal: Reveal | str = Reveal.CLASS,
    link_port: int | None = None,
    dealer: Address | None = None,
    dealer_key: str | Path | None = None,
    allow_plaintext: bool = False,
    max_clients: int | None = None,
    stop: threading.Event | None = None,
    started: Callable[[], None] = lambda: None,
    log: Callable[[Visit], None] = lambda visit: None,
) -> None:
    """Offer a model to one client after another, until `stop` is set.

    Clients say hello at `listen`; the computation takes place on `link_port`, by
    default the one above. `tls` is a folder with this party's certificate;
    without it, `listen` must be on this machine, unless `allow_plaintext`.
    `reveal` says what clients are given of their images' logits. `dealer` and
    `dealer_key` name the dealer, where the profile has one. Unless given, the
    profile is `semi2k-dealer` with a dealer and for a program that was lowered
    for SEMI2K, and else `cheetah`.
    Returns by itself only after `max_clients` sessions. `started` is called once
    clients may come, and `log` with every visit.
    """
    named, engine = load_profile(profile or default_for(model, dealer)), engine_of(model)
    settings = with_engine(named, engine)
    require_for_two_hosts(settings)
    credentials = None if tls is None else load_credentials(tls, Role.MODEL_OWNER)
    require_protected([listen], encrypted=credentials is not None, allow_plaintext=allow_plaintext)
    host, port = resolve(listen)
    link_port = port + 1 if link_port is None else link_port
    if not 0 < link_port < 2**16 or link_port == port:
        raise UserError(f"the link port must be a free one below 65536, not {link_port}")
    require_free(f"{host}:{link_port}")
    place = find_dealer(settings, dealer, dealer_key, credentials)
    try:
        listener = socket.create_server((host, port))
    except OSError as error:
        raise UserError(f"cannot listen on {listen}: {error.strerror or error}") from error
    with listener, tempfile.TemporaryDirectory(prefix="mpcvit-") as name:
        server = _Server(
            own={**own_model(model, Path(name), reveal), **told(credentials, place)},
            profile=settings,
            # as named, as the client's are, who learns of the engine from the answer
            terms=terms_of(named),
            engine=engine,
            credentials=credentials,
            link=(host, link_port),
            max_clients=max_clients,
            stop=stop or threading.Event(),
            log=log,
        )
        server.run(listener, started)


class _Attendant:
    """A party that has the model and waits for a client."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.journal = Journal()
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="mpcvit-"))
        party = PartyProcess(Role.MODEL_OWNER, own, Path(folder) / "model_owner")
        self.party = self._stack.enter_context(party)

    @property
    def is_alive(self) -> bool:
        return self.party.process.poll() is None

    def close(self) -> None:
        self._stack.close()


class _Server:
    def __init__(
        self,
        *,
        own: dict[str, Any],
        profile: Profile,
        terms: Terms,
        engine: EngineChoice | None,
        credentials: Credentials | None,
        link: tuple[str, int],
        max_clients: int | None,
        stop: threading.Event,
        log: Callable[[Visit], None],
    ) -> None:
        self._own, self._profile = own, profile
        self._terms, self._engine = terms, engine
        self._context = None if credentials is None else credentials.listening_context()
        self._link_host, self._link_port = link
        self._clients_left = max_clients
        self._stop, self._log = stop, log
        self._log_lock = threading.Lock()
        self._turn = threading.Lock()  # held by the one client that is served
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._attendant = _Attendant(own)

    def run(self, listener: socket.socket, started: Callable[[], None]) -> None:
        try:
            wait_until_ready(self._attendant.party, self._profile, self._attendant.journal)
            started()
            listener.settimeout(_LOOK_UP_S)
            while not self._stop.is_set():
                try:
                    connection, peer = listener.accept()
                except TimeoutError:
                    continue
                threading.Thread(target=self._visit, args=(connection, peer), daemon=True).start()
        finally:
            self._stop.set()
            listener.close()
            self._turn.acquire()  # the session that runs sees the stop; none begins after it
            self._attendant.close()

    def _visit(self, connection: socket.socket, peer: tuple[str, int]) -> None:
        """One connection, from the first byte to its line in the log."""
        started = time.monotonic()
        visit = _Visitor(peer="{}:{}".format(*peer), time=_now())
        try:
            line, hello = self._hear_out(connection)
            with line:
                visit.certificate = line.certified
                visit.ended = self._decide(line, hello, peer[0], visit)
        except (UserError, OSError) as error:
            visit.ended = str(error)
        except Exception as error:  # whatever it is, the next client is served
            visit.ended = f"unexpected {type(error).__name__}"
        finally:
            connection.close()
        with self._log_lock:
            self._log(visit.to_visit(time.monotonic() - started))
        if visit.is_served:
            self._turn.release()

    def _hear_out(self, connection: socket.socket) -> tuple[Line, Hello]:
        if not self._strangers.acquire(blocking=False):
            raise PartyError(f"{_MOST_STRANGERS} others have not yet said hello")
        try:
            return accept(connection, self._context, _HELLO_S)
        finally:
            self._strangers.release()

    def _decide(self, line: Line, hello: Hello, host: str, visit: "_Visitor") -> str:
        """Refuse, put off or serve a client; says how it ended."""
        found = difference(Role.MODEL_OWNER, self._terms, Role.DATA_OWNER, hello.terms)
        if found:
            line.send(Answer(verdict=Verdict.REFUSED, reason=found).to_dict(), _HELLO_S)
            return f"refused: {found}"
        if not self._turn.acquire(blocking=False):
            line.send(Answer(verdict=Verdict.BUSY).to_dict(), _HELLO_S)
            return "put off: another client is served"
        visit.is_served = True
        # the address it came from, so that a client cannot make this host dial others
        return self._serve(line, f"{host}:{hello.link_port}", visit)

    def _serve(self, line: Line, client: Address, visit: "_Visitor") -> str:
        if not self._attendant.is_alive:
            self._attendant.close()
            self._attendant = _Attendant(self._own)
        attendant, session = self._attendant, token_hex(16)
        visit.journal = attendant.journal
        watchdog = Watchdog(line, "the client vanished")

        def check() -> None:
            if self._stop.is_set():
                raise PartyError("the server was stopped")
            watchdog.check()

        try:
            answer = Answer(
                verdict=Verdict.WELCOME,
                link_port=self._link_port,
                session=session,
                engine=self._engine,
            )
            line.send(answer.to_dict(), _HELLO_S)
            own_address = f"{self._link_host}:{self._link_port}"
            addresses = {Role.MODEL_OWNER: own_address, Role.DATA_OWNER: client}
            attendant.party.meet(addresses, session, self._profile)
            watch([attendant.party], self._profile, attendant.journal, check)
            watchdog.part()
            return "done"
        except DealerError as error:  # of which the client has been told, and is gone
            return str(error)
        except UserError as error:
            line.poll()
            where = attendant.journal.where(Role.MODEL_OWNER)
            return str(error) if line.is_open else f"the client vanished {where}"
        finally:
            attendant.close()
            self._count()
            if not self._stop.is_set():
                self._attendant = _Attendant(self._own)

    def _count(self) -> None:
        if self._clients_left is not None:
            self._clients_left -= 1
            if self._clients_left <= 0:
                self._stop.set()


@dataclass(kw_only=True)
class _Visitor:
    """What is known of a visit while it lasts."""

    peer: Address
    time: str
    certificate: str = ""
    ended: str = ""
    is_served: bool = False  # holds the turn, until its line is in the log
    journal: Journal | None = None

    def to_visit(self, seconds: float) -> Visit:
        events = [] if self.journal is None else self.journal.events[Role.MODEL_OWNER]
        stages = [event for event in events if event["event"] == "stage"]
        return Visit(
            time=self.time,
            peer=self.peer,
            certificate=self.certificate,
            images=sum(stage["images"] for stage in stages if stage["cost"]["name"] == "output"),
            sent_bytes=sum(stage["cost"]["sent_bytes"] for stage in stages),
            received_bytes=sum(stage["cost"]["received_bytes"] for stage in stages),
            exchanges=sum(stage["cost"]["exchanges"] for stage in stages),
            seconds=round(seconds, 2),
            ended=self.ended,
        )


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

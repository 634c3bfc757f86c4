"""Parties as processes on this machine: started, watched, and never left behind."""

import contextlib
import json
import os
import secrets
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.codec import encode
from mpcvit.cores import THREADS_VARIABLE, threads_of_party
from mpcvit.dealer.errors import DealerError
from mpcvit.errors import UserError
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.dealing.local_dealer import LocalDealer
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import Request
from mpcvit.secure.parties.events import Done, Event, Failed, Journal, Ready, from_line
from mpcvit.secure.parties.job import Meeting, Own, OwnImages, OwnNothing, PartyJob
from mpcvit.secure.parties.roles import ROLES, Address, Role
from mpcvit.secure.parties.sockets import UNIX, unix_address
from mpcvit.secure.parties.wan import Relay, Route
from mpcvit.storage import CACHE_VARIABLE, cache_folder

OWN_SOCKET = "own.sock"
_TICK_S = 0.25
_PARTY = "mpcvit.secure.parties.party"


def run_processes(owned: Mapping[Role, Own], profile: Profile, journal: Journal) -> None:
    """Run every role in a process of its own, through the profile's network.

    `owned` is what each role alone knows: the place of its model or images. The journal
    holds the data owner's result afterwards.
    """
    roles = ROLES[profile.protocol]
    session = secrets.token_hex(16)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mpcvit-")))
        listening = {role: own_address(folder / _folder_name(role)) for role in roles}
        dealer = None
        if profile.dealer is Dealer.THIRD_PARTY:
            dealer = stack.enter_context(LocalDealer(folder / "dealer"))
            listening[Role.DEALER] = dealer.address
        parties = []
        for role in roles:
            (folder / _folder_name(role)).mkdir()
        dialled = _addresses_by_role(listening, profile, stack)
        dealers: Mapping[Role, DealerEndpoint] = {}
        if dealer is not None:
            dealers = dealer.places({role: found[Role.DEALER] for role, found in dialled.items()})
        for role in roles:
            party = PartyProcess(
                role,
                owned.get(role, OwnNothing()),
                folder / _folder_name(role),
                dealer=dealers.get(role),
                scratch=folder,
                parties_here=len(roles),
            )
            parties.append(stack.enter_context(party))
        for party in parties:
            peers = {role: dialled[party.role][role] for role in roles if role is not party.role}
            party.connect(peers, session, profile)
        watch(parties, profile, journal)


def _folder_name(role: Role) -> str:
    return role.name.lower()


def own_address(folder: Path) -> Address:
    """Return where the party that works in a folder listens."""
    return unix_address(folder / OWN_SOCKET)


def _addresses_by_role(
    listening: Mapping[Role, Address], profile: Profile, stack: ExitStack
) -> dict[Role, dict[Role, Address]]:
    """Return where each role finds itself and the others: directly, or through the relay."""
    if not profile.network.is_emulated:
        return {role: dict(listening) for role in listening}
    routes = {
        (dialler, other): Route(dialler=dialler.name, dialled=other.name, target=listening[other])
        for dialler in listening
        for other in listening
        if dialler is not other and dialler is not Role.DEALER  # who dials nobody
    }
    relay = stack.enter_context(Relay(profile.network, list(routes.values())))
    return {
        role: {
            other: relay.addresses[routes[role, other]] if (role, other) in routes else address
            for other, address in listening.items()
        }
        for role in listening
    }


class PartyProcess:
    """A party, its line to this process, and a folder for what SPU writes.

    It loads what it owns, and waits for where and how the parties meet. If this process
    dies, the party removes `scratch`, which is its own folder unless given, and ends.
    `parties_here` share this machine's cores.
    """

    def __init__(
        self,
        role: Role,
        own: Own,
        folder: Path,
        *,
        dealer: DealerEndpoint | None = None,
        scratch: Path | None = None,
        parties_here: int = 1,
    ) -> None:
        self.role = role
        descriptor = own.descriptor if isinstance(own, OwnImages) else None
        inherited = [] if descriptor is None else [descriptor]
        self._folder = folder
        self.control, theirs = socket.socketpair()
        with (folder / "party.log").open("wb") as log, theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", _PARTY, str(theirs.fileno()), str(folder)],
                pass_fds=[theirs.fileno(), *inherited],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # Ctrl-C reaches this process alone, which ends the party
                env={
                    THREADS_VARIABLE: str(threads_of_party(parties_here)),
                    **os.environ,
                    "TMPDIR": str(folder),
                    CACHE_VARIABLE: str(cache_folder().absolute()),
                    "JAX_PLATFORMS": "cpu",
                },
            )
        for descriptor in inherited:
            os.close(descriptor)
        self._unread = b""
        self._send(PartyJob(role=role, scratch=scratch or folder, own=own, dealer=dealer))

    def connect(
        self,
        peers: Mapping[Role, Address],
        session: str,
        profile: Profile,
        *,
        announced: Request | None = None,
        tls: Path | None = None,
    ) -> None:
        """Send the party to its peers, under a session's name that all of them know.

        Sockets get short names in the party's folder: SPU takes no long ones.
        """
        addresses = {self.role: unix_address(Path(OWN_SOCKET))}
        for role, address in peers.items():
            name = f"{_folder_name(role)}.sock"
            if address.startswith(UNIX):
                (self._folder / name).symlink_to(address.removeprefix(UNIX))
                addresses[role] = unix_address(Path(name))
            else:
                addresses[role] = address
        self._send(
            Meeting(
                addresses=addresses,
                session=session,
                profile=profile,
                announced=announced,
                tls=tls,
            )
        )

    def _send(self, message: PartyJob | Meeting) -> None:
        # a party that has died is noticed when its events end
        with contextlib.suppress(ConnectionError):
            self.control.sendall(json.dumps(encode(message)).encode() + b"\n")

    def read_events(self) -> list[Event] | None:
        """Return what the party has reported since, or None once its line is closed."""
        try:
            piece = self.control.recv(1 << 20)
        except ConnectionError:
            piece = b""
        if not piece:
            return None
        *lines, self._unread = (self._unread + piece).split(b"\n")
        return [from_line(line) for line in lines]

    def how_it_ended(self) -> str:
        code = self.process.wait()
        if self._could_not_send():
            return "the connection to its peer was lost"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _could_not_send(self) -> bool:
        """Return whether SPU brought the process down because a message could not be delivered.

        Its exit code then is now 255, now that of a segmentation fault; its log tells.
        """
        return any(b"SendImpl error" in log.read_bytes() for log in self._folder.rglob("*.log"))

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.control.close()

    def __enter__(self) -> "PartyProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until_ready(party: PartyProcess, profile: Profile, journal: Journal) -> None:
    """Return once a party has loaded what it owns; raise if it cannot."""
    deadline = time.monotonic() + profile.limits.silence_s
    arrivals = select.poll()  # unlike select, for descriptors of any number
    arrivals.register(party.control, select.POLLIN)
    while not journal.knows(party.role, Ready):
        if not arrivals.poll(1000):
            if time.monotonic() > deadline:
                raise PartyError(f"the {party.role.value}'s process did not start")
        elif not _collect(party, journal):
            raise _ended(party, journal)


def watch(
    parties: Sequence[PartyProcess],
    profile: Profile,
    journal: Journal,
    check: Callable[[], None] = lambda: None,
    is_enough: Callable[[], bool] = lambda: False,
) -> None:
    """Collect events until every party is done or it is enough; raise as soon as one cannot be.

    A party that is done stays until it is closed, so that the last receipts of
    the others still find it. `check` is called several times a second, and may
    raise to end the watch.
    """
    limits = profile.limits
    patience_s = limits.connect_s + 2 * limits.silence_s
    last_s = time.monotonic()

    def is_over() -> bool:
        return is_enough() or all(journal.knows(party.role, Done) for party in parties)

    with selectors.DefaultSelector() as selector:
        for party in parties:
            selector.register(party.control, selectors.EVENT_READ, party)
        while not is_over():
            for key, _ in selector.select(timeout=_TICK_S):
                last_s = time.monotonic()
                if not _collect(key.data, journal) and not is_over():
                    raise _ended(key.data, journal)
            if is_over():  # and nothing that happens now makes it fail
                return
            check()
            if time.monotonic() - last_s > patience_s:
                raise PartyError(f"no party made progress for {patience_s:g} s")


def _collect(party: PartyProcess, journal: Journal) -> bool:
    """Take what a party has reported; whether more may come."""
    events = party.read_events()
    for event in events or ():
        if isinstance(event, Failed):
            raise (DealerError if event.of_dealer else UserError)(event.message)
        journal.add(party.role, event)
    return events is not None


def _ended(party: PartyProcess, journal: Journal) -> PartyError:
    return PartyError(
        f"the {party.role.value}'s process ended unexpectedly "
        f"{journal.where(party.role)}: {party.how_it_ended()}"
    )

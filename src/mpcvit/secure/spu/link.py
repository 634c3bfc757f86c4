"""The line between parties: who takes part, and messages from role to role.

SPU numbers parties by rank. Ranks do not leave this file.
"""

import json
from collections.abc import Mapping
from typing import Any

from spu import libspu

from mpcvit.artifacts.profile import Limits
from mpcvit.artifacts.protocols import Protocol
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.roles import ROLES, Address, Role, is_this_machine, resolve
from mpcvit.secure.parties.sockets import UNIX

_MAX_JSON_BYTES = 1 << 25  # descriptions carry the scripts of a large program


class Channel:
    """One party's messages to and from the others."""

    def __init__(
        self,
        context: Any,
        roles: tuple[Role, ...],
        role: Role,
        silence_s: float,
        *,
        counts_costs: bool = True,
        parties_here: int = 1,
    ) -> None:
        self.context = context  # what SPU's runtime talks through
        self.role = role
        self.roles = roles
        self.counts_costs = counts_costs  # one party in a process, as they share SPU's log
        self.parties_here = parties_here  # who share this process, and its CPU seconds
        self._silence_s = silence_s
        # apart from SPU's own messages, which could otherwise be taken for ours
        self._own = context.spawn()

    @property
    def peers(self) -> tuple[Role, ...]:
        return tuple(role for role in self.roles if role is not self.role)

    @property
    def number(self) -> int:
        """How SPU counts this party; for SPU's own settings alone."""
        return self.roles.index(self.role)

    def send(self, to: Role, message: bytes) -> None:
        # not `send`, which waits a round trip for the receipt
        self._own.send_async(self.roles.index(to), message)

    def receive(self, sender: Role) -> bytes:
        try:
            return self._own.recv(self.roles.index(sender))
        except RuntimeError as error:
            raise lost(error, self._silence_s) from error

    def send_json(self, to: Role, document: Any) -> None:
        self.send(to, json.dumps(document).encode())

    def receive_json(self, sender: Role) -> Any:
        message = self.receive(sender)
        if len(message) > _MAX_JSON_BYTES:
            raise PartyError(f"the {sender.value} sent a description of {len(message)} bytes")
        try:
            return json.loads(message)
        except (ValueError, RecursionError) as error:
            raise PartyError(f"the {sender.value} sent what cannot be understood") from error

    def in_order_of_parties(self, by_role: Mapping[Role, Any]) -> list[Any]:
        """Return values in the order that SPU counts the parties in."""
        return [by_role[role] for role in self.roles]

    def by_role(self, in_order: list[Any]) -> dict[Role, Any]:
        return dict(zip(self.roles, in_order, strict=True))

    def part(self) -> None:
        """Return once every party has all that it was sent.

        SPU's own `stop_link` would bring down the party whose last receipt finds
        the other gone. So the link stays up, and ends with the process.
        """
        for peer in self.peers:
            self.send(peer, b"done")
        for peer in self.peers:
            self.receive(peer)


def lost(error: RuntimeError, silence_s: float) -> PartyError:
    """Return SPU's exception as a sentence; the rest of it is for SPU's developers."""
    if "timeout" in str(error):
        return PartyError(f"another party sent nothing for {silence_s:g} s; the run was given up")
    reason = next((line.strip() for line in str(error).splitlines() if "[" in line), "unknown")
    return PartyError(f"the computation failed: {reason}")


def connect(
    role: Role,
    protocol: Protocol,
    addresses: Mapping[Role, Address],
    limits: Limits,
    session: str,
    credentials: Credentials | None = None,
) -> Channel:
    """Listen on the own address, dial the others', and wait until all are there.

    `session` is a name that all parties know; messages of any other are ignored.
    SPU's link never faces a network: every address is a socket in a folder or on
    loopback, and `tunnel.py` carries its bytes between hosts. With `credentials`
    the link encrypts by itself, for benchmarks that compare the two.
    """
    roles = ROLES[protocol]
    for address in addresses.values():
        _require_local(address)
    description = _describe(limits, session)
    if credentials is not None:
        _encrypt(description, credentials)
    for member in roles:
        description.add_party(member.name, addresses[member])
    try:
        context = libspu.link.create_brpc(description, roles.index(role))
    except RuntimeError as error:
        raise PartyError(
            f"no connection to {_listed(roles, role)} within {limits.connect_s:g} s"
        ) from error
    return Channel(context, roles, role, limits.silence_s)


def connect_in_memory(role: Role, protocol: Protocol, limits: Limits, session: str) -> Channel:
    """Wait until all parties of a session are there, each in a thread of this process."""
    roles = ROLES[protocol]
    description = _describe(limits, session)
    for member in roles:
        description.add_party(member.name, member.name)
    return Channel(
        libspu.link.create_mem(description, roles.index(role)),
        roles,
        role,
        limits.silence_s,
        counts_costs=role is Role.DATA_OWNER,
        parties_here=len(roles),
    )


_ATTEMPT_MS = 100
# Messages are sent again for about as long; a peer that is gone costs as much. brpc tries a lost
# connection again every three seconds, so this leaves it two attempts.
_OUTAGE_MS = 8000


def _describe(limits: Limits, session: str) -> Any:
    description: Any = libspu.link.Desc()  # type: ignore[reportAttributeAccessIssue]
    description.id = session
    description.recv_timeout_ms = round(limits.silence_s * 1000)
    description.http_timeout_ms = round(limits.connect_s * 1000)  # for a receipt, not an answer
    # A message that cannot be delivered is sent again, and in the end brings the process down.
    # Each attempt to connect is such a message: all of them together must take `connect_s`.
    connect_ms = limits.connect_s * 1000
    connects = max(1, round(connect_ms / _OUTAGE_MS))
    description.connect_retry_times = connects
    description.connect_retry_interval_ms = _ATTEMPT_MS
    description.retry_opts.max_retry = max(1, round(connect_ms / connects / _ATTEMPT_MS) - 1)
    description.retry_opts.retry_interval_ms = _ATTEMPT_MS
    description.retry_opts.retry_interval_incr_ms = 0
    return description


def _encrypt(description: Any, credentials: Credentials) -> None:
    """Switch on TLS with certificates on both sides. The options have no constructor."""
    description.enable_ssl = True
    for options in (description.client_ssl_opts, description.server_ssl_opts):
        options.cert.certificate_path = str(credentials.certificate)
        options.cert.private_key_path = str(credentials.key)
        options.verify.ca_file_path = str(credentials.authority)
        options.verify.verify_depth = 1  # 0 would check nothing


def _require_local(address: Address) -> None:
    if not address.startswith(UNIX) and not is_this_machine(resolve(address)[0]):
        raise PartyError(f"SPU's link must stay on this machine, and {address} leaves it")


def _listed(roles: tuple[Role, ...], role: Role) -> str:
    return " and ".join(f"the {member.value}" for member in roles if member is not role)

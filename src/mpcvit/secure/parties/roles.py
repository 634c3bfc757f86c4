"""Who takes part in a private run, and where they are."""

import ipaddress
import random
import socket
from contextlib import suppress
from enum import Enum

from mpcvit.artifacts.protocols import PROTOCOLS
from mpcvit.errors import UserError
from mpcvit.hosts.peer import CLIENT, DEALER, SERVER

Address = str
"""host:port"""

_UNLENT_PORTS = range(10_240, 32_768)  # below what systems lend to outgoing connections


class Role(str, Enum):
    """A party's part in a run, by what it brings along."""

    MODEL_OWNER = "model owner"
    DATA_OWNER = "data owner"
    HELPER = "helper"  # nothing; ABY3 needs a third
    DEALER = "dealer"  # randomness for SEMI2K; takes no part in the computation itself


CERTIFIED = {Role.MODEL_OWNER: SERVER, Role.DATA_OWNER: CLIENT, Role.DEALER: DEALER}
"""The role in the certificate of each party's host."""


ROLES = {row: tuple(Role)[: row.parties] for row in PROTOCOLS.values()}
"""The roles that compute under each protocol. An insecure dealer is the first of them."""


def free_addresses(count: int) -> list[Address]:
    """Return addresses on this machine that nobody listens on.

    Of ports that no outgoing connection is lent meanwhile.
    """
    servers: list[socket.socket] = []
    try:
        for port in random.SystemRandom().sample(_UNLENT_PORTS, len(_UNLENT_PORTS)):
            if len(servers) == count:
                break
            with suppress(OSError):
                servers.append(socket.create_server(("127.0.0.1", port)))
        return ["{}:{}".format(*server.getsockname()) for server in servers]
    finally:
        for server in servers:
            server.close()


def split_address(address: Address) -> tuple[str, int]:
    """Return the host and the port of an address.

    >>> split_address("localhost:9000")
    ('localhost', 9000)
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"'{address}' is not an address; write host:port, as in 127.0.0.1:9000")
    return host, int(port)


def resolve(address: Address) -> tuple[str, int]:
    """Return an address as numbers (IPv4).

    >>> resolve("localhost:9000")
    ('127.0.0.1', 9000)
    """
    host, port = split_address(address)
    try:
        found = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise UserError(f"there is no host '{host}' with an IPv4 address") from None
    return str(found[0][4][0]), port


def is_this_machine(host: str) -> bool:
    """Return whether a numeric address never leaves the machine.

    >>> is_this_machine("127.0.0.2"), is_this_machine("0.0.0.0")
    (True, False)
    """
    return ipaddress.ip_address(host).is_loopback

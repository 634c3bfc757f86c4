"""Who takes part in a private run, and where they are."""

import socket
from enum import Enum

from mpcvit.errors import UserError
from mpcvit.profile import Protocol

Address = str
"""host:port"""


class Role(str, Enum):
    """What a party brings along."""

    MODEL_OWNER = "model owner"
    DATA_OWNER = "data owner"
    HELPER = "helper"  # nothing; ABY3 needs a third


def roles_of(protocol: Protocol) -> tuple[Role, ...]:
    """Who takes part. The first is SEMI2K's dealer, where the first party is."""
    return tuple(Role)[: protocol.parties]


def free_addresses(count: int) -> list[Address]:
    """Addresses on this machine that nobody listens on."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return ["{}:{}".format(*server.getsockname()) for server in servers]
    finally:
        for server in servers:
            server.close()


def split_address(address: Address) -> tuple[str, int]:
    """The host and the port of an address.

    >>> split_address("localhost:9000")
    ('localhost', 9000)
    """
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise UserError(f"'{address}' is not an address; write host:port, as in 127.0.0.1:9000")
    return host, int(port)

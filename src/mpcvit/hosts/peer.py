"""Peers: who is at the other end of a TLS connection, and whom a host accepts.

`allowed.txt` lies beside the host's own certificate, and has a line for each peer, such as
`3f0c…  hospital`. In the server's folder it lists the clients, and in a client's the servers.
"""

import hashlib
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcvit.errors import UserError
from mpcvit.storage import write_text

SERVER, CLIENT, DEALER = "server", "client", "dealer"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A certified host. The fingerprint identifies it; the name is for people."""

    role: str  # the organisational unit in the certificate
    name: str  # the common name in the certificate
    fingerprint: str  # SHA-256 of the certificate, in hexadecimal


def peer_of(connection: ssl.SSLSocket | ssl.SSLObject) -> Peer:
    """Return who is at the other end of a connection whose certificate was verified."""
    content = connection.getpeercert(binary_form=True)
    assert content is not None, "the context requires a certificate"
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    values = {name: str(value) for part in subject for name, value in part}
    return Peer(
        role=values.get("organizationalUnitName", ""),
        name=values.get("commonName", ""),
        fingerprint=hashlib.sha256(content).hexdigest(),
    )


ALLOWED_FILE = "allowed.txt"
_HEADER = "# SHA-256 of a certificate, and the name of the host that may use it\n"
_LINE = re.compile(r"([0-9a-f]{64})\s+(\S+)")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_allowed(path: Path) -> dict[str, str]:
    """Return the names of the allowed peers by fingerprint."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read the list of allowed peers {path}; `mpcvit certs` writes it"
        ) from error
    allowed = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        if not (match := _LINE.fullmatch(text)):
            raise UserError(f"{path}, line {number}: write a fingerprint and a name")
        allowed[match[1]] = match[2]
    return allowed


def write_allowed(path: Path, allowed: Mapping[str, str]) -> None:
    """Replace the list."""
    lines = [f"{fingerprint}  {name}\n" for fingerprint, name in allowed.items()]
    write_text(path, _HEADER + "".join(lines))


def allow(path: Path, name: str, fingerprint: str) -> None:
    """Put a peer on the list, in place of any earlier certificate of the same name."""
    allowed = read_allowed(path) if path.exists() else {}
    kept = {other: of for other, of in allowed.items() if of != name}
    write_allowed(path, {**kept, fingerprint: name})


def revoke(path: Path, name: str) -> None:
    """Take a peer off the list."""
    allowed = read_allowed(path)
    kept = {fingerprint: of for fingerprint, of in allowed.items() if of != name}
    if kept == allowed:
        raise UserError(f"{path} lists no '{name}'; it lists {', '.join(allowed.values()) or '–'}")
    write_allowed(path, kept)


def require_name(name: str) -> None:
    """Refuse a name that could not be a folder or a word in a log."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot be a client's name; use letters, digits, dots and hyphens"
        )

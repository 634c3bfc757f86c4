"""The identity of the other end of a TLS connection."""

import hashlib
import ssl
from dataclasses import dataclass
from typing import Any

SERVER, CLIENT, DEALER = "server", "client", "dealer"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A certified host. The fingerprint identifies it; the name is for people."""

    role: str  # the organisational unit in the certificate
    name: str  # the common name in the certificate
    fingerprint: str  # SHA-256 of the certificate, in hexadecimal


def fingerprint_of(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate in its binary form."""
    return hashlib.sha256(certificate).hexdigest()


def peer_of(connection: ssl.SSLSocket | ssl.SSLObject) -> Peer:
    """Return who is at the other end of a connection whose certificate was verified."""
    content = connection.getpeercert(binary_form=True)
    assert content is not None, "the context requires a certificate"
    subject: Any = (connection.getpeercert() or {}).get("subject", ())
    values = {name: str(value) for part in subject for name, value in part}
    return Peer(
        role=values.get("organizationalUnitName", ""),
        name=values.get("commonName", ""),
        fingerprint=fingerprint_of(content),
    )

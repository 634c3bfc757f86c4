"""Credentials of a party, and TLS contexts made of them.

A party's folder holds its key, its certificate and the certificate of the
authority that both parties trust, and no other: a private one, made for the
pair by `mpcvit certs`. A certificate's common name says whose it is.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

from mpcvit.dealer.messages import name_of
from mpcvit.errors import UserError
from mpcvit.runtime.errors import PartyError
from mpcvit.runtime.roles import Role

KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "key.pem", "cert.pem", "ca.pem"
CERTIFIED = {Role.MODEL_OWNER: "server", Role.DATA_OWNER: "client", Role.DEALER: "dealer"}
"""The common name in each role's certificate."""


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What a party shows its peer, and what it expects of it."""

    folder: Path

    @property
    def key(self) -> Path:
        return self.folder / KEY_FILE

    @property
    def certificate(self) -> Path:
        return self.folder / CERTIFICATE_FILE

    @property
    def authority(self) -> Path:
        return self.folder / AUTHORITY_FILE

    def listening_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def dialling_context(self) -> ssl.SSLContext:
        """Also checks that the certificate is that of the host which was dialled."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(self.authority)
        context.load_cert_chain(self.certificate, self.key)
        return context


def load_credentials(folder: str | Path, role: Role) -> Credentials:
    """Find a role's credentials in a folder, and refuse early what the peer would refuse."""
    from mpcvit.runtime.certificates import read_certificate, why_not_valid

    credentials = Credentials(folder=Path(folder).absolute())
    for path in (credentials.key, credentials.certificate, credentials.authority):
        if not path.is_file():
            raise UserError(
                f"there is no {path}; --tls takes a folder that `mpcvit certs` made, "
                f"such as certs/{CERTIFIED[role]}"
            )
    certificate = read_certificate(credentials.certificate)
    authority = read_certificate(credentials.authority)
    if reason := why_not_valid(certificate, authority, CERTIFIED[role]):
        raise UserError(f"{credentials.certificate} cannot be used: {reason}")
    try:
        credentials.dialling_context()
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{credentials.key} cannot be used with {CERTIFICATE_FILE} beside it: "
            f"{error.strerror or error}"
        ) from error
    return credentials


def require_certified(line: ssl.SSLSocket, role: Role) -> None:
    """Make sure that the peer's certificate, which the authority signed, is that of a role."""
    name, expected = name_of(line), CERTIFIED[role]
    if name != expected:
        raise PartyError(f"the peer's certificate is that of '{name}', not of '{expected}'")

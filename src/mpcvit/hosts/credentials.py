"""Credentials of a host, and TLS contexts made of them.

    key.pem        this host's key
    cert.pem       this host's certificate
    ca.pem         the authority that signed the certificates of server and clients
    dealer-ca.pem  the authority that signed the dealer's certificate, where there is one
    allowed.txt    fingerprints of the peers that this host accepts

The two authorities are apart, because the dealer knows all masks: nobody who holds a
certificate of the dealer's authority may stand in the line between server and client.
"""

import ctypes
import resource
import ssl
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from mpcvit.errors import UserError
from mpcvit.hosts.peer import ALLOWED_FILE, DEALER, read_allowed

KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE = "key.pem", "cert.pem", "ca.pem"
DEALER_AUTHORITY_FILE = "dealer-ca.pem"
_WARN_BEFORE = timedelta(days=14)


class Credentials:
    """The certificate that a host shows its peers, and the authorities that it trusts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / KEY_FILE
        self.certificate = folder / CERTIFICATE_FILE
        self.authority = folder / AUTHORITY_FILE
        self.dealer_authority = folder / DEALER_AUTHORITY_FILE
        self.allowed = folder / ALLOWED_FILE

    def listening_context(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER, self.authority)

    def dialling_context(self) -> ssl.SSLContext:
        """Return a context that also checks the name of the host that was dialled."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, self.authority)

    def dealer_context(self) -> ssl.SSLContext:
        """Return a context for dialling the dealer, which has an authority of its own."""
        if not self.dealer_authority.is_file():
            raise UserError(
                f"there is no {self.dealer_authority}; `mpcvit certs --dealer-host HOST` makes it"
            )
        return self._context(ssl.PROTOCOL_TLS_CLIENT, self.dealer_authority)

    def _context(self, side: int, authority: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority)
        # a passphrase, so that OpenSSL does not ask for one on the terminal
        context.load_cert_chain(self.certificate, self.key, password="")
        return context


def load_credentials(folder: str | Path, role: str) -> Credentials:
    """Find a role's credentials in a folder, and refuse early what a peer would refuse."""
    credentials = Credentials(Path(folder).absolute())
    for path in (credentials.key, credentials.certificate, credentials.authority):
        if not path.is_file():
            raise UserError(
                f"there is no {path}; --tls takes a folder that `mpcvit certs` made, "
                f"such as certs/{role}"
            )
    # the dealer's own authority is not in its folder: it trusts that of the parties
    authority = None if role == DEALER else read_certificate(credentials.authority)
    if reason := why_not_valid(read_certificate(credentials.certificate), authority, role):
        raise UserError(f"{credentials.certificate} cannot be used: {reason}")
    try:
        credentials.dialling_context()
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{credentials.key} cannot be used with {CERTIFICATE_FILE} beside it: "
            f"{error.strerror or error}"
        ) from error
    if role != DEALER:
        read_allowed(credentials.allowed)
    return credentials


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a certificate: {error}") from error


def why_not_valid(
    certificate: x509.Certificate, authority: x509.Certificate | None, role: str
) -> str:
    """Return why a peer would refuse a certificate, or an empty text."""
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    if [unit.value for unit in units] != [role]:
        values = ", ".join(str(unit.value) for unit in units) or "nobody"
        return f"it is that of a '{values}', not of a '{role}'"
    if authority is not None:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            return f"the authority in {AUTHORITY_FILE} beside it did not sign it"
    for each in (certificate, authority):
        if each is not None and (reason := why_not_now(each)):
            return f"it {reason}"
    return ""


def why_not_accepted(error: ssl.SSLCertVerificationError) -> str:
    """Return why a peer's certificate was refused, and what to do."""
    match error.verify_code:
        case 62 | 64:  # another name, another address
            advice = "use a name that it has, or make one for this name (`mpcvit certs --host`)"
        case 9 | 10:  # not yet, no longer
            advice = "compare the clocks of both hosts, or renew it"
        case 18 | 19 | 20 | 21:
            advice = "another authority signed it; is the address right, and --tls of this pair?"
        case _:
            return error.verify_message
    return f"{error.verify_message.rstrip('.')}; {advice}"


def why_not_now(certificate: x509.Certificate) -> str:
    now = datetime.now(timezone.utc)
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"is valid only from {certificate.not_valid_before_utc:%Y-%m-%d} on"
    return ""


class ListeningContext:
    """The TLS context of a listening host, made anew when a file of its folder changes."""

    def __init__(self, credentials: Credentials, warn: Callable[[str], None]) -> None:
        self._credentials, self._warn = credentials, warn
        self._seen = self._look()
        self.current = credentials.listening_context()
        self._warned_on = ""
        self.expires = self._expiry()
        self.refresh()

    def latest(self) -> ssl.SSLContext:
        """Return the context of the files as they are now."""
        self.refresh()
        return self.current

    def refresh(self) -> None:
        """Load changed files, and warn once a day when the certificate expires soon.

        Files that cannot be loaded leave the former context in place.
        """
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            try:
                self.current = self._credentials.listening_context()
                self.expires = self._expiry()
                self._warn("certificates were reloaded")
            except (OSError, UserError) as error:  # ssl.SSLError is an OSError
                self._warn(f"changed certificates cannot be used, the former ones stay: {error}")
        self._warn_of_expiry()

    def _warn_of_expiry(self) -> None:
        now = datetime.now(timezone.utc)
        if self.expires - now > _WARN_BEFORE or self._warned_on == f"{now:%Y-%m-%d}":
            return
        self._warned_on = f"{now:%Y-%m-%d}"
        self._warn(f"{self._credentials.certificate} expires on {self.expires:%Y-%m-%d}")

    def _expiry(self) -> datetime:
        files = (self._credentials.certificate, self._credentials.authority)
        return min(read_certificate(path).not_valid_after_utc for path in files)

    def _look(self) -> tuple[object, ...]:
        seen: list[object] = []
        own = self._credentials
        for path in (own.key, own.certificate, own.authority):
            try:
                status = path.stat()
                seen.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                seen.append(None)
        return tuple(seen)


_PR_SET_DUMPABLE = 4


def protect_memory() -> None:
    """Switch off core dumps, and let no other process of this user read this one's memory."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # the limit alone does not stop a core pattern that pipes dumps into a program
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)

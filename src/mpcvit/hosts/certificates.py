"""`mpcvit certs`: private authorities, and a certificate for each host.

    ca/         key.pem, ca.pem: signs the certificates of server and clients; stays offline
    server/     for the host of the model
    client/     for the host of the images; `mpcvit certs add NAME` makes further ones
    dealer-ca/  key.pem, ca.pem: signs the dealer's certificate alone; stays offline
    dealer/     for the dealer's host, where there is one

`credentials.py` lists the files of a host's folder. Keys are of the curve P-256.
"""

import ipaddress
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpcvit.errors import UserError
from mpcvit.hosts.credentials import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    DEALER_AUTHORITY_FILE,
    KEY_FILE,
    read_certificate,
    why_not_now,
)
from mpcvit.hosts.peer import (
    ALLOWED_FILE,
    CLIENT,
    DEALER,
    SERVER,
    allow,
    read_allowed,
    require_name,
    revoke,
    write_allowed,
)
from mpcvit.storage import replacing_folder, write_text

AUTHORITY_FOLDER, DEALER_AUTHORITY_FOLDER = "ca", "dealer-ca"
THIS_MACHINE = ("localhost", "127.0.0.1")
PAIR = (SERVER, CLIENT)
_RESERVED = {SERVER, DEALER, AUTHORITY_FOLDER, DEALER_AUTHORITY_FOLDER}
_CLOCKS_DIFFER = timedelta(hours=1)
_HOST_NAME = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)(\.(?!-)[a-zA-Z0-9-]{1,63}(?<!-))*")
_NOTE = """\
key.pem signs certificates that hosts accept. Keep this folder offline; no host
needs it. Give each host its own folder beside this one, and nothing else.
"""


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """An authority that can sign."""

    key: Any
    certificate: x509.Certificate


@dataclass(frozen=True, kw_only=True)
class Issued:
    """The folders that were made, and how long their certificates are valid."""

    folders: dict[str, Path]  # by the host's name
    fingerprints: dict[str, str]  # SHA-256, by the host's name
    expires: datetime
    missing_days: int  # of those asked for, because the authority ends before


def make_certificates(
    out: Path,
    *,
    names: Sequence[str] = PAIR,
    hosts: Sequence[str] = THIS_MACHINE,
    dealer_hosts: Sequence[str] = THIS_MACHINE,
    days: int = 365,
    fresh: bool = False,
    now: datetime | None = None,
) -> Issued:
    """Write a folder for each name: "server", "dealer", or that of a client.

    `hosts` are the names and addresses at which the server is reached, and
    `dealer_hosts` those of the dealer. The authorities in `out` sign, or new
    ones if there are none or `fresh` is set. Each new certificate gets its line
    in the lists of allowed peers of the folders that are there.
    """
    if days < 1:
        raise UserError(f"certificates must be valid for a day or more, not {days}")
    alternatives = {
        SERVER: [_subject_alternative(host) for host in hosts],
        DEALER: [_subject_alternative(host) for host in dealer_hosts],
    }
    _require_room(out, names, fresh=fresh)
    start = now or datetime.now(timezone.utc)
    asked = start + timedelta(days=days)
    if fresh and out.exists():
        # everything at once, so that nobody is left with half of the new certificates
        with replacing_folder(out) as temporary:
            issued, end = _issue(temporary, names, alternatives, start, asked)
    else:
        issued, end = _issue(out, names, alternatives, start, asked)
    return Issued(
        folders={name: out / name for name in names},
        fingerprints={
            name: certificate.fingerprint(hashes.SHA256()).hex()
            for name, certificate in issued.items()
        },
        expires=end,
        missing_days=(asked - end).days,
    )


def _issue(
    out: Path,
    names: Sequence[str],
    alternatives: dict[str, list[x509.GeneralName]],
    start: datetime,
    end: datetime,
) -> tuple[dict[str, x509.Certificate], datetime]:
    """Make the folders below `out`; also return when the first certificate expires."""
    parties = _authority(out / AUTHORITY_FOLDER, start, end)
    dealers = None
    if DEALER in names or (out / DEALER_AUTHORITY_FOLDER).exists():
        dealers = _authority(out / DEALER_AUTHORITY_FOLDER, start, end)
    issued = {}
    for name in names:
        issuer = dealers if name == DEALER else parties
        assert issuer is not None
        end = min(end, issuer.certificate.not_valid_after_utc)
        with replacing_folder(out / name) as folder:
            issued[name] = _write_host(folder, name, issuer, alternatives, start, end)
            (folder / AUTHORITY_FILE).write_bytes(_pem(parties.certificate))
    for folder in _host_folders(out):
        if folder.name == DEALER:
            continue
        if dealers is not None:
            (folder / DEALER_AUTHORITY_FILE).write_bytes(_pem(dealers.certificate))
        _list_peers(folder, out)
    return issued, end


def _list_peers(folder: Path, out: Path) -> None:
    """Write the fingerprints that a host accepts: a server all clients, a client the server."""
    listed = folder / ALLOWED_FILE
    listed.touch()
    revoked = _read_revoked(out)
    for other in _host_folders(out):
        if other.name != DEALER and (other.name == SERVER) != (folder.name == SERVER):
            certificate = read_certificate(other / CERTIFICATE_FILE)
            fingerprint = certificate.fingerprint(hashes.SHA256()).hex()
            if fingerprint not in revoked:
                allow(listed, other.name, fingerprint)


def revoke_client(out: Path, name: str) -> None:
    """Take a client off the server's list, and remember never to list its certificate again."""
    listed = out / SERVER / ALLOWED_FILE
    fingerprints = [key for key, value in read_allowed(listed).items() if value == name]
    revoke(listed, name)
    if (out / AUTHORITY_FOLDER).is_dir():
        known = _read_revoked(out)
        write_allowed(_revoked_file(out), {**known, **dict.fromkeys(fingerprints, name)})


def _read_revoked(out: Path) -> dict[str, str]:
    path = _revoked_file(out)
    return read_allowed(path) if path.exists() else {}


def _revoked_file(out: Path) -> Path:
    return out / AUTHORITY_FOLDER / "revoked.txt"


def _host_folders(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.glob(f"*/{CERTIFICATE_FILE}"))


def names_listed(names: str) -> tuple[str, ...]:
    """Return the names in a list with commas.

    >>> names_listed("server, client")
    ('server', 'client')
    """
    return tuple(dict.fromkeys(name.strip() for name in names.split(",")))


def _require_room(out: Path, names: Sequence[str], *, fresh: bool) -> None:
    """Refuse to overwrite keys unasked, and to replace a folder that holds other things too."""
    for name in names:
        if name not in (SERVER, DEALER):
            require_name(name)
            if name in _RESERVED:
                raise UserError(f"'{name}' is the name of another folder; choose another name")
    try:
        present = sorted(out.iterdir()) if out.exists() else []
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror or error}") from error
    for entry in present:
        if not (entry / KEY_FILE).is_file():
            raise UserError(f"{out} holds other things, such as {entry.name}; choose a new folder")
    if fresh:
        return
    for name in names:
        if (out / name).exists():
            raise UserError(
                f"{out / name} is already there; --fresh replaces {out} and its authority by new "
                "ones"
            )


def _subject_alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            raise UserError(f"'{host}' is neither a host name nor an address") from None
        return x509.DNSName(host)


def _authority(folder: Path, start: datetime, end: datetime) -> Issuer:
    """Return the authority in a folder, or a new one that is written there."""
    if folder.exists():
        return _read_issuer(folder)
    key = ec.generate_private_key(ec.SECP256R1())
    # a name of its own, so that people can tell several authorities apart
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"mpcvit authority {secrets.token_hex(4)}")]
    )
    certificate = (
        _builder(name, name, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    with replacing_folder(folder) as temporary:
        _write_key(temporary, key)
        (temporary / AUTHORITY_FILE).write_bytes(_pem(certificate))
        (temporary / "README.txt").write_text(_NOTE)
    return Issuer(key=key, certificate=certificate)


def _write_host(
    folder: Path,
    name: str,
    issuer: Issuer,
    alternatives: dict[str, list[x509.GeneralName]],
    start: datetime,
    end: datetime,
) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = issuer.certificate
    role = name if name in (SERVER, DEALER) else CLIENT
    usage = ExtendedKeyUsageOID.CLIENT_AUTH if role == CLIENT else ExtendedKeyUsageOID.SERVER_AUTH
    # a server also dials: the dealer
    usages = [usage, ExtendedKeyUsageOID.CLIENT_AUTH] if role == SERVER else [usage]
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, role),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    builder = (
        _builder(subject, authority.subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    if role in alternatives:  # clients are not dialled, so nobody checks their host names
        names = x509.SubjectAlternativeName(alternatives[role])
        builder = builder.add_extension(names, critical=False)
    certificate = builder.sign(issuer.key, hashes.SHA256())
    _write_key(folder, key)
    (folder / CERTIFICATE_FILE).write_bytes(_pem(certificate))
    return certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Any, start: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _CLOCKS_DIFFER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _read_issuer(folder: Path) -> Issuer:
    certificate = read_certificate(folder / AUTHORITY_FILE)
    try:
        key = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read the authority's key {folder / KEY_FILE}: {error}") from error
    if key.public_key() != certificate.public_key():
        raise UserError(f"{folder / KEY_FILE} is not the key of {AUTHORITY_FILE} beside it")
    if reason := why_not_now(certificate):
        raise UserError(f"the authority in {folder} {reason}; --fresh makes a new one")
    return Issuer(key=key, certificate=certificate)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(folder: Path, key: Any) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_text(folder / KEY_FILE, pem.decode(), private=True)

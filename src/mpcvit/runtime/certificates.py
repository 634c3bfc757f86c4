"""`mpcvit certs`: a private authority for one pair of parties, and a certificate for each.

    ca/      key.pem, ca.pem: signs certificates, and stays offline
    server/  key.pem, cert.pem, ca.pem: for the host of the model
    client/  key.pem, cert.pem, ca.pem: for the host of the images
    dealer/  the same, for the dealer's host, where there is one

Keys are those of the curve P-256. As both parties dial each other, each
certificate serves both ends of a connection.
"""

import ipaddress
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mpcvit.errors import UserError
from mpcvit.runtime.roles import Role
from mpcvit.runtime.tls import AUTHORITY_FILE, CERTIFICATE_FILE, CERTIFIED, KEY_FILE
from mpcvit.storage import replacing_folder

AUTHORITY_FOLDER = "ca"
THIS_MACHINE = ("localhost", "127.0.0.1")
PAIR = (Role.MODEL_OWNER, Role.DATA_OWNER)
_CLOCKS_DIFFER = timedelta(hours=1)
_HOST_NAME = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)(\.(?!-)[a-zA-Z0-9-]{1,63}(?<!-))*")
_NOTE = """\
key.pem signs certificates that both parties accept. Keep this folder offline;
neither host needs it. Give each party its own folder beside this one, and
nothing else.
"""


@dataclass(frozen=True, kw_only=True)
class Issuer:
    """An authority that can sign."""

    key: Any
    certificate: x509.Certificate


@dataclass(frozen=True, kw_only=True)
class Issued:
    """What was made, and how long it serves."""

    folders: dict[str, Path]  # by the name in the certificate
    fingerprints: dict[str, str]  # SHA-256, by the name in the certificate
    expires: datetime


def make_certificates(
    out: Path,
    *,
    roles: Sequence[Role] = PAIR,
    hosts: Sequence[str] = THIS_MACHINE,
    dealer_hosts: Sequence[str] = THIS_MACHINE,
    days: int = 365,
    fresh: bool = False,
    now: datetime | None = None,
) -> Issued:
    """Write a folder for each role, signed by the authority in `out` or by a new one.

    `hosts` are the names and addresses at which the server is reached, and
    `dealer_hosts` those of the dealer. What is there is kept, unless `fresh`;
    then everything is new, the authority too.
    """
    if days < 1:
        raise UserError(f"certificates must be valid for a day or more, not {days}")
    names = {
        Role.MODEL_OWNER: [_subject_alternative(host) for host in hosts],
        Role.DEALER: [_subject_alternative(host) for host in dealer_hosts],
    }
    folders = {role: out / CERTIFIED[role] for role in roles}
    _require_room(out, list(folders.values()), fresh=fresh)
    start = now or datetime.now(timezone.utc)
    end = start + timedelta(days=days)
    if (out / AUTHORITY_FOLDER).exists() and not fresh:
        issuer = _read_issuer(out / AUTHORITY_FOLDER)
        end = min(end, issuer.certificate.not_valid_after_utc)
        made = {}
        for role, folder in folders.items():
            with replacing_folder(folder) as temporary:
                made[role] = _write_party(temporary, role, issuer, names, start, end)
    else:
        issuer = _new_issuer(start, end)
        with replacing_folder(out) as temporary:
            _write_issuer(temporary / AUTHORITY_FOLDER, issuer)
            made = {
                role: _write_party(temporary / CERTIFIED[role], role, issuer, names, start, end)
                for role in folders
            }
    return Issued(
        folders={CERTIFIED[role]: folder for role, folder in folders.items()},
        fingerprints={
            CERTIFIED[role]: certificate.fingerprint(hashes.SHA256()).hex()
            for role, certificate in made.items()
        },
        expires=end,
    )


def roles_named(names: str) -> tuple[Role, ...]:
    """
    >>> roles_named("client")
    (<Role.DATA_OWNER: 'data owner'>,)
    """
    by_name = {name: role for role, name in CERTIFIED.items()}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in by_name:
            raise UserError(
                f"there is no party '{name}'; certificates are for {', '.join(by_name)}"
            )
    return tuple(by_name[name] for name in dict.fromkeys(wanted))


def read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a certificate: {error}") from error


def why_not_valid(certificate: x509.Certificate, authority: x509.Certificate, name: str) -> str:
    """Why a peer would refuse a certificate, or nothing."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if [attribute.value for attribute in found] != [name]:
        values = ", ".join(str(attribute.value) for attribute in found) or "nobody"
        return f"it is that of '{values}', not of '{name}'"
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return f"the authority in {AUTHORITY_FILE} beside it did not sign it"
    for one in (certificate, authority):
        if reason := _why_not_now(one):
            return f"it {reason}"
    return ""


def _require_room(out: Path, folders: Sequence[Path], *, fresh: bool) -> None:
    """Refuse to overwrite keys unasked, and to replace a folder that holds other things too."""
    ours = {AUTHORITY_FOLDER, *CERTIFIED.values()}
    try:
        present = sorted(entry.name for entry in out.iterdir()) if out.exists() else []
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror or error}") from error
    if others := [name for name in present if name not in ours]:
        raise UserError(f"{out} holds other things, such as {others[0]}; choose a new folder")
    if fresh:
        return
    for folder in folders:
        if folder.exists():
            raise UserError(
                f"{folder} is already there; --fresh replaces {out} and its authority by new ones"
            )


def _subject_alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not _HOST_NAME.fullmatch(host):
            raise UserError(f"'{host}' is neither a host name nor an address") from None
        return x509.DNSName(host)


def _new_issuer(start: datetime, end: datetime) -> Issuer:
    key = ec.generate_private_key(ec.SECP256R1())
    # a name of its own, so that authorities of several pairs can be told apart
    name = _name(f"mpcvit authority {secrets.token_hex(4)}")
    certificate = (
        _builder(name, name, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Issuer(key=key, certificate=certificate)


def _write_party(
    folder: Path,
    role: Role,
    issuer: Issuer,
    hosts: Mapping[Role, Sequence[x509.GeneralName]],
    start: datetime,
    end: datetime,
) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    authority = issuer.certificate
    both_ends = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(_name(CERTIFIED[role]), authority.subject, key.public_key(), start, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(both_ends), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier),
            critical=False,
        )
    )
    if role in hosts:  # those whose host name is checked
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts[role]), critical=False)
    certificate = builder.sign(issuer.key, hashes.SHA256())
    _write_secret(folder / KEY_FILE, _pem_of_key(key))
    _write(folder / CERTIFICATE_FILE, _pem(certificate))
    _write(folder / AUTHORITY_FILE, _pem(authority))
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


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write_issuer(folder: Path, issuer: Issuer) -> None:
    _write_secret(folder / KEY_FILE, _pem_of_key(issuer.key))
    _write(folder / AUTHORITY_FILE, _pem(issuer.certificate))
    _write(folder / "README.txt", _NOTE.encode())


def _read_issuer(folder: Path) -> Issuer:
    certificate = read_certificate(folder / AUTHORITY_FILE)
    try:
        key = serialization.load_pem_private_key((folder / KEY_FILE).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"cannot read the authority's key {folder / KEY_FILE}: {error}") from error
    if key.public_key() != certificate.public_key():
        raise UserError(f"{folder / KEY_FILE} is not the key of {AUTHORITY_FILE} beside it")
    if reason := _why_not_now(certificate):
        raise UserError(f"the authority in {folder} {reason}; --fresh makes a new one")
    return Issuer(key=key, certificate=certificate)


def _why_not_now(certificate: x509.Certificate) -> str:
    now = datetime.now(timezone.utc)
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"is valid only from {certificate.not_valid_before_utc:%Y-%m-%d} on"
    return ""


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _pem_of_key(key: Any) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def _write_secret(path: Path, content: bytes) -> None:
    """A file that its owner alone could read from the first moment on."""
    path.parent.mkdir(exist_ok=True, mode=0o700)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)

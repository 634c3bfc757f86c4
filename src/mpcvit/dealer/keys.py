"""The dealer's key pair, to which parties encrypt their seeds.

    private.pem  the dealer's alone
    public.pem   for both parties

RSA of 3072 bits with PKCS #1 v1.5 padding, as SPU's client encrypts to a key of
this kind. Nothing that can be seen from outside tells whether a ciphertext was
well-formed: what is not decrypts to a seed that nobody knows.
"""

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from mpcvit.dealer.generator import SEED_BYTES
from mpcvit.errors import UserError
from mpcvit.storage import replacing_folder, write_text

PRIVATE_FILE, PUBLIC_FILE = "private.pem", "public.pem"
_BITS = 3072
CIPHERTEXT_BYTES = _BITS // 8


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    """A dealer's public key, which parties know."""

    pem: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key in its one binary form."""
        key = serialization.load_pem_public_key(self.pem.encode())
        der = key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return hashlib.sha256(der).hexdigest()


class PrivateKey:
    """A dealer's private key, which decrypts seeds."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        secret = key.private_bytes(
            serialization.Encoding.DER,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        self._rejected = hashlib.sha256(b"mpcvit rejected seeds" + secret).digest()
        self.public = PublicKey(pem=_public_pem(key))

    def decrypt(self, ciphertext: bytes) -> bytes:
        """Return a seed.

        A malformed ciphertext gives one that depends on it and on this key alone.
        """
        instead = hmac.digest(self._rejected, ciphertext, "sha256")[:SEED_BYTES]
        try:
            found = self._key.decrypt(ciphertext, padding.PKCS1v15())
        except ValueError:
            found = b""
        return found if len(found) == SEED_BYTES else instead


def make_keys(folder: Path) -> PublicKey:
    """Write a new key pair into a new folder."""
    if folder.exists():
        raise UserError(
            f"{folder} is already there, and a dealer's key is not replaced; choose another --out"
        )
    key = _generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with replacing_folder(folder) as temporary:
        write_text(temporary / PRIVATE_FILE, private.decode(), private=True)
        (temporary / PUBLIC_FILE).write_text(_public_pem(key), encoding="ascii")
    return load_public_key(folder / PUBLIC_FILE)


def make_up_public_key() -> PublicKey:
    """Return a key whose private half nobody has, for seeds that hide nothing."""
    return PublicKey(pem=_public_pem(_generate()))


def load_public_key(path: str | Path) -> PublicKey:
    try:
        pem = Path(path).read_text(encoding="ascii")
        key = serialization.load_pem_public_key(pem.encode())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a dealer's public key: {_reason(error)}") from error
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size != _BITS:
        raise UserError(f"{path} is not a dealer's public key: not RSA of {_BITS} bits")
    return PublicKey(pem=pem)


def load_private_key(folder: str | Path) -> PrivateKey:
    path = Path(folder) / PRIVATE_FILE
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"cannot read the dealer's key {path}: {_reason(error)}; `mpcvit dealer keys` makes one"
        ) from error
    if not isinstance(key, rsa.RSAPrivateKey) or key.key_size != _BITS:
        raise UserError(f"{path} is not a dealer's key: not RSA of {_BITS} bits")
    return PrivateKey(key)


def _generate() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, _BITS)


def _public_pem(key: rsa.RSAPrivateKey) -> str:
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or "it cannot be read as PEM"

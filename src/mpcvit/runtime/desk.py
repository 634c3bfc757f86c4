"""Where SPU's runtime finds its dealer."""

from dataclasses import dataclass
from typing import Any

from spu import libspu

from mpcvit.dealer.gateway import Gateway
from mpcvit.runtime.dealer_place import require_known_spu

_CONFIG_FIELD = 71  # of SPU's RuntimeConfig: a TTPBeaverConfig, whose setter is broken
_HOST, _RANK, _SCHEMA, _KEY = 1, 2, 3, 4  # fields of a TTPBeaverConfig


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A gateway, and the dealer's key to which SPU encrypts its seed."""

    gateway: Gateway
    public_pem: str

    def configure(self, config: Any, number: int) -> Any:
        """A runtime's settings, with this desk in place of SPU's own dealer.

        Every party is told that it is the one that adjusts; see `dealer/gateway.py`.
        """
        require_known_spu()
        config.beaver_type = libspu.RuntimeConfig.BeaverType.TrustedThirdParty
        place = (
            _bytes_field(_HOST, self.gateway.address.encode())
            + _number_field(_RANK, number)
            + _bytes_field(_SCHEMA, b"SM2")  # the only name it knows; the key's own kind counts
            + _bytes_field(_KEY, self.public_pem.encode())
        )
        whole = libspu.RuntimeConfig()
        whole.ParseFromString(config.SerializeToString() + _bytes_field(_CONFIG_FIELD, place))
        return whole


def _bytes_field(field: int, content: bytes) -> bytes:
    """A field of a protocol buffer.

    >>> _bytes_field(71, b"ab").hex()
    'ba04026162'
    """
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number_field(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])

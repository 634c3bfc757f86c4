"""Where SPU's runtime finds its dealer."""

from dataclasses import dataclass
from typing import Any

from spu import libspu

from mpcvit.dealer.party.gateway import Gateway
from mpcvit.secure.dealing.endpoint import require_known_spu
from mpcvit.secure.service.protobuf import bytes_field, number_field

_CONFIG_FIELD = 71  # of SPU's RuntimeConfig: a TTPBeaverConfig, whose setter is broken
_HOST, _RANK, _SCHEMA, _KEY = 1, 2, 3, 4  # fields of a TTPBeaverConfig


@dataclass(frozen=True, kw_only=True)
class DealerSettings:
    """A gateway, and the dealer's key to which SPU encrypts its seed."""

    gateway: Gateway
    public_pem: str

    def configure(self, config: Any, number: int) -> Any:
        """Return a runtime's settings, with the gateway in place of SPU's own dealer.

        Every party is configured as the one that adjusts; see `dealer/party/gateway.py`.
        """
        require_known_spu()
        config.beaver_type = libspu.RuntimeConfig.BeaverType.TrustedThirdParty
        place = (
            bytes_field(_HOST, self.gateway.address.encode())
            + number_field(_RANK, number)
            + bytes_field(_SCHEMA, b"SM2")  # the only name it knows; the key's own kind counts
            + bytes_field(_KEY, self.public_pem.encode())
        )
        whole = libspu.RuntimeConfig()
        whole.ParseFromString(config.SerializeToString() + bytes_field(_CONFIG_FIELD, place))
        return whole

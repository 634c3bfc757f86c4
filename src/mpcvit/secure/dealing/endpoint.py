"""Where a party finds its dealer."""

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.profile import Profile
from mpcvit.dealer import SPU_VERSION
from mpcvit.dealer.keys import load_public_key
from mpcvit.dealer.party.client import DealerClient
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.parties.roles import Address

_MAX_PATIENCE_S = 8.0  # so that both parties know within ten seconds that a dealer is gone


def require_known_spu() -> None:
    """Refuse every SPU but the one whose generator and requests were checked."""
    found = importlib.metadata.version("spu")
    if found != SPU_VERSION:
        raise UserError(
            f"a dealer needs spu {SPU_VERSION}, whose requests are known, and here is {found}"
        )


@dataclass(frozen=True, kw_only=True)
class DealerEndpoint:
    """The place of a party's dealer, and how they know each other."""

    address: Address  # as in the dealer's certificate
    key: str  # file with the dealer's public key
    tls: str  # folder with this party's certificate
    dialled: Address = ""  # where the address is reached, if elsewhere

    def client_of(self, profile: Profile) -> DealerClient:
        return self.client(min(profile.limits.connect_s, _MAX_PATIENCE_S))

    def client(self, patience_s: float) -> DealerClient:
        require_known_spu()
        return DealerClient(
            address=self.address,
            fingerprint=load_public_key(self.key).fingerprint,
            context=Credentials(folder=Path(self.tls)).dealer_context(),
            patience_s=patience_s,
            dialled=self.dialled,
        )

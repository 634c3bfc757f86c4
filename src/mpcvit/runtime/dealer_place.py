"""Where a party finds its dealer."""

from dataclasses import asdict, dataclass
from pathlib import Path

from mpcvit.dealer.client import DealerClient
from mpcvit.dealer.keys import load_public_key
from mpcvit.runtime.roles import Address
from mpcvit.runtime.tls import Credentials


@dataclass(frozen=True, kw_only=True)
class DealerPlace:
    """Where a party finds its dealer, and how they know each other."""

    address: Address  # as in the dealer's certificate
    key: str  # file with the dealer's public key
    tls: str  # folder with this party's certificate
    dialled: Address = ""  # where the address is reached, if elsewhere

    def to_dict(self) -> dict[str, str]:
        return asdict(self)

    def client(self, patience_s: float) -> DealerClient:
        return DealerClient(
            address=self.address,
            fingerprint=load_public_key(self.key).fingerprint,
            context=Credentials(folder=Path(self.tls)).dialling_context(),
            patience_s=patience_s,
            dialled=self.dialled,
        )

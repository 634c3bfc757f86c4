"""What `serve` and `predict` require of a profile and of addresses before they begin."""

from collections.abc import Sequence
from pathlib import Path

from mpcvit.artifacts.engine import EngineSettings
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer, Truncation, names_with
from mpcvit.dealer.keys import load_public_key
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.roles import Address, is_this_machine, resolve

_MAX_LOCAL_FRACTION_BITS = 32
"""Local truncation of a 128-bit product with 2 x 32 fraction bits and values up to 2^20 fails
with a probability of 2^-43; lowering itself uses 26."""


def require_for_two_hosts(
    profile: Profile, hosts: Sequence[str], *, insecure_first_party: bool
) -> None:
    """Refuse what makes sense on one machine alone."""
    if profile.protocol.parties != 2:
        raise UserError(
            f"{profile.protocol.name} needs {profile.protocol.parties} parties, and serve and "
            f"predict are two; use {names_with(parties=2)}"
        )
    if profile.network.is_emulated:
        raise UserError(
            "the profile emulates a network, but between hosts the real one is used; use a "
            "profile without [network]"
        )
    is_first_party = profile.dealer is Dealer.FIRST_PARTY_INSECURE
    if is_first_party and not insecure_first_party and not all(map(is_this_machine, hosts)):
        raise UserError(
            "with this profile the model's host makes the randomness and could read every image; "
            "use --dealer with a third organisation, or --insecure-first-party to measure"
        )


def require_engine(engine: EngineSettings | None) -> None:
    """Refuse a server's engine under which results would be wrong or shares would not hide."""
    if engine is None or engine.truncation is not Truncation.LOCAL:
        return
    if engine.ring_bits != 128 or engine.fraction_bits > _MAX_LOCAL_FRACTION_BITS:
        raise PartyError(
            f"the server asks for local truncation in {engine.ring_bits} bits with "
            f"{engine.fraction_bits} fraction bits, under which results may be wrong; this client "
            f"takes 128 bits with at most {_MAX_LOCAL_FRACTION_BITS}"
        )


def find_dealer(
    profile: Profile,
    address: Address | None,
    key: str | Path | None,
    credentials: Credentials,
) -> DealerEndpoint | None:
    """Return the dealer that a profile asks for, once it has answered, or None."""
    if profile.dealer is not Dealer.THIRD_PARTY:
        if address is not None or key is not None:
            raise UserError("the profile has no dealer; use semi2k-dealer, or leave out --dealer")
        return None
    if address is None or key is None:
        raise UserError("the profile needs --dealer with its address and --dealer-key with its key")
    resolve(address)
    load_public_key(key)
    place = DealerEndpoint(
        address=address, key=str(Path(key).absolute()), tls=str(credentials.folder)
    )
    place.client_of(profile).check()
    return place

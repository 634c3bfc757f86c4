"""What `serve` and `predict` ask of a profile and of addresses before they begin."""

from pathlib import Path
from typing import Any

from mpcvit.dealer.keys import load_public_key
from mpcvit.errors import UserError
from mpcvit.profile import Dealer, Profile
from mpcvit.runtime.dealer_place import DealerPlace
from mpcvit.runtime.roles import Address, is_this_machine, resolve
from mpcvit.runtime.tls import Credentials


def require_for_two_hosts(profile: Profile) -> None:
    """Refuse what makes sense on one machine alone."""
    if profile.protocol.parties != 2:
        raise UserError(
            f"{profile.protocol.value} needs {profile.protocol.parties} parties, and serve and "
            "predict are two; take CHEETAH"
        )
    if profile.network.is_emulated:
        raise UserError(
            "the profile emulates a network, but between hosts the real one is used; take a "
            "profile without [network]"
        )


def require_protected(addresses: list[Address], *, encrypted: bool, allow_plaintext: bool) -> None:
    """Without TLS, refuse to leave this machine unless the user insists."""
    if encrypted and allow_plaintext:
        raise UserError("--tls and --allow-plaintext exclude each other")
    if encrypted or allow_plaintext:
        return
    for address in addresses:
        host, _ = resolve(address)
        if not is_this_machine(host):
            raise UserError(
                f"{address} reaches beyond this machine, where without --tls everyone on the way "
                "could read and change what passes; make certificates with `mpcvit certs`, or "
                "insist with --allow-plaintext"
            )


def told(credentials: Credentials | None, dealer: DealerPlace | None) -> dict[str, Any]:
    """What a party's process is told of certificates and the dealer."""
    tls = {} if credentials is None else {"tls": str(credentials.folder)}
    return tls if dealer is None else {**tls, "dealer": dealer.to_dict()}


def find_dealer(
    profile: Profile,
    address: Address | None,
    key: str | Path | None,
    credentials: Credentials | None,
) -> DealerPlace | None:
    """The dealer that a profile asks for, once it has answered; None where there is none."""
    if profile.dealer is not Dealer.THIRD_PARTY:
        if address is not None or key is not None:
            raise UserError("the profile has no dealer; take semi2k-dealer, or leave out --dealer")
        return None
    if address is None or key is None:
        raise UserError("the profile needs --dealer with its address and --dealer-key with its key")
    if credentials is None:
        raise UserError("a dealer is spoken to with TLS only; give --tls")
    resolve(address)
    load_public_key(key)
    folder = str(credentials.folder)
    place = DealerPlace(address=address, key=str(Path(key).absolute()), tls=folder)
    place.client(profile.limits.connect_s).check()
    return place

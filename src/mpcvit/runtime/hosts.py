"""What `serve` and `predict` ask of a profile and of addresses before they begin."""

from mpcvit.errors import UserError
from mpcvit.profile import Profile
from mpcvit.runtime.roles import Address, is_this_machine, resolve


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

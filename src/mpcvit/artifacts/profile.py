"""Profile: under which protocol, in which ring and over which network a private run happens.

A profile is a TOML file. Those that come with the package are in `profiles/`,
and are known by their bare names too.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpcvit.artifacts.protocols import Dealer, Protocol, Truncation, names_with
from mpcvit.artifacts.shipped import PROFILES, find_shipped
from mpcvit.codec import decode, encode, read_toml, require
from mpcvit.errors import UserError

SECURE_DEFAULT = "cheetah"  # two parties, and nobody to trust
DEALER_DEFAULT = "semi2k-dealer"  # two parties, and a dealer that colludes with neither
_SHARED = (
    *("protocol", "ring_bits", "fraction_bits", "dealer"),
    *("truncation", "reuse_weight_masks", "owned_weights", "squares"),
)


class InsecureProfileWarning(UserWarning):
    """A profile under which one party could open every secret is used on purpose."""


@dataclass(frozen=True, kw_only=True)
class NetworkLink:
    """A line between two parties, the same in both directions; zeros: as it is."""

    round_trip_ms: float = 0.0
    bandwidth_bytes_per_s: float = 0.0  # of each direction; 0: unlimited
    jitter_ms: float = 0.0  # each message is late by up to this much more

    def __post_init__(self) -> None:
        for name in ("round_trip_ms", "bandwidth_bytes_per_s", "jitter_ms"):
            require(getattr(self, name) >= 0, name, "must not be negative")

    @property
    def is_emulated(self) -> bool:
        return self != NetworkLink()

    def seconds(self, *, exchanges: float, sent_bytes: float) -> float:
        """Return the time on the line: half a round trip per exchange, and the bytes one way.

        >>> wan = NetworkLink(round_trip_ms=40.0, bandwidth_bytes_per_s=44e6)
        >>> wan.seconds(exchanges=100, sent_bytes=88_000_000)
        4.0
        """
        on_the_way = exchanges * self.round_trip_ms / 2000
        if self.bandwidth_bytes_per_s == 0:
            return on_the_way
        return on_the_way + sent_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The seconds that a party waits before it gives up."""

    connect_s: float = 30.0
    silence_s: float = 300.0  # without any message; must exceed the peer's slowest operation

    def __post_init__(self) -> None:
        for name in ("connect_s", "silence_s"):
            require(getattr(self, name) > 0, name, "must be positive")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A private run's settings: those to agree on, and the network that may be emulated."""

    protocol: Protocol
    ring_bits: int = 64
    fraction_bits: int = 18
    dealer: Dealer = Dealer.NONE
    truncation: Truncation = Truncation.FAITHFUL
    reuse_weight_masks: bool = False  # open a weight once a session, where that pays
    owned_weights: bool = False  # kept whole by their owner rather than split into shares
    squares: bool = False  # by SPU's kernel for squares, in programs without exp
    network: NetworkLink = field(default_factory=NetworkLink)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        ring, protocol = self.ring_bits, self.protocol
        require(ring in (64, 128), "ring_bits", f"must be 64 or 128, not {ring}")
        # a product has twice the fraction bits, and needs room for its whole part and sign
        most = ring // 2 - 8
        require(
            8 <= self.fraction_bits <= most,
            "fraction_bits",
            f"must lie in [8, {most}] in a ring of {ring} bits, not be {self.fraction_bits}",
        )
        if self.dealer is Dealer.NONE:
            # only an insecure dealer must be asked for by name
            object.__setattr__(self, "dealer", protocol.dealers[0])
        require(
            self.dealer in protocol.dealers,
            "dealer",
            f'must be "none": {protocol.name} has no dealer',
        )
        require(
            self.truncation in protocol.truncations
            and (self.truncation is not Truncation.LOCAL or ring == 128),
            "truncation",
            f'can be "local" under {names_with(truncates_locally=True)} with '
            "ring_bits = 128 alone: in a smaller ring it ruins an inference far too often, and "
            "other protocols truncate in their own way",
        )
        require(
            not self.reuse_weight_masks or protocol.reuses_masks,
            "reuse_weight_masks",
            f"needs {names_with(reuses_masks=True)}: other protocols open no weights",
        )
        # only a gateway between SPU and its dealer sees that no mask hides two things
        require(
            not self.reuse_weight_masks or self.dealer is Dealer.THIRD_PARTY,
            "reuse_weight_masks",
            f'needs dealer = "{Dealer.THIRD_PARTY.value}": without its gateways nothing would '
            "notice a mask that gives secrets away",
        )
        require(
            not self.owned_weights or protocol.owned_weights,
            "owned_weights",
            f"needs {names_with(owned_weights=True)}: other protocols gain nothing by it",
        )
        require(
            not self.squares or self.truncation is Truncation.LOCAL,
            "squares",
            'needs truncation = "local": otherwise a square takes one exchange more',
        )

    @property
    def resolution(self) -> float:
        """The smallest positive number that can be represented."""
        return 2.0**-self.fraction_bits

    @property
    def magnitude_limit(self) -> float:
        """Beyond this a product wraps around the ring before it is truncated.

        >>> int(load_profile("cheetah").magnitude_limit) == 2**26
        True
        """
        return 2.0 ** (self.ring_bits - 2 - 2 * self.fraction_bits)

    @property
    def warning(self) -> str:
        """What everyone who sees a result of this profile must know, if anything."""
        if self.dealer is Dealer.FIRST_PARTY_INSECURE:
            return (
                f"INSECURE dealer: the model owner makes {self.protocol.name}'s randomness and "
                "could open every secret; for measuring only"
            )
        return ""

    @property
    def trust(self) -> str:
        """Whom model owner and data owner must trust."""
        return self.warning or self.protocol.trust

    def require_network(self) -> None:
        """Refuse to price or to measure without a network."""
        if not self.network.is_emulated:
            raise UserError(
                "the profile names no network to price and to measure through; take one that "
                "does, such as semi2k-dealer-wan"
            )

    def shared_settings(self) -> dict[str, Any]:
        """Return what the parties must have in common."""
        plain = encode(self)
        return {name: plain[name] for name in _SHARED}


def default_profile(dealer: str | None = None) -> str:
    """Return the name of the default profile: the one with a dealer if there is one.

    >>> default_profile(), default_profile("dealer.example.org:9100")
    ('cheetah', 'semi2k-dealer')
    """
    return SECURE_DEFAULT if dealer is None else DEALER_DEFAULT


def load_profile(source: str | Path | Profile) -> Profile:
    """Read a profile file, or one that comes with the package by its name.

    >>> load_profile("semi2k-dealer-wan").network.round_trip_ms
    40.0
    """
    if isinstance(source, Profile):
        return source
    path = find_shipped(Path(source), PROFILES, "profile")
    document = read_toml(path, "profile")
    try:
        return decode(Profile, document, str(path))
    except UserError as error:
        message = str(error)
        raise UserError(message if str(path) in message else f"{path}: {message}") from None

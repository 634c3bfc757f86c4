"""Profile: under which protocol, in which ring and over which network a private run happens.

A profile is a TOML file. Those that come with the package are in `profiles/`,
and are known by their bare names too.
"""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from mpcvit.codec import decode, encode, read_toml, require
from mpcvit.errors import UserError, nearest

SHIPPED = Path(__file__).parent / "profiles"
SECURE_DEFAULT = "cheetah"  # two parties, and nobody to trust
DEALER_DEFAULT = "semi2k-dealer"  # two parties, and a dealer that colludes with neither
_AGREED = (
    *("protocol", "ring_bits", "fraction_bits", "dealer"),
    *("truncation", "reuse_weight_masks", "owned_weights"),
)


class Protocol(str, Enum):
    """How shares are computed on; docs/threat_model.md says who must trust whom."""

    SEMI2K = "SEMI2K"
    CHEETAH = "CHEETAH"
    ABY3 = "ABY3"

    @property
    def parties(self) -> int:
        return 3 if self is Protocol.ABY3 else 2


class Dealer(str, Enum):
    """Who makes the correlated randomness that SEMI2K consumes."""

    NONE = "none"
    THIRD_PARTY = "third-party"
    FIRST_PARTY_INSECURE = "first-party-insecure"


class Truncation(str, Enum):
    """How a product drops the fraction bits that it has too many.

    faithful: as SPU does unless told otherwise; SEMI2K pays an exchange for it
    local:    each party shifts its own share, in no exchange; the result is wrong by
              2^(ring_bits - fraction_bits) with a probability that shrinks with the ring
    """

    FAITHFUL = "faithful"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Network:
    """A line between two parties, the same in both directions; zeros: as it is."""

    round_trip_ms: float = 0.0
    bandwidth_bytes_per_s: float = 0.0  # of each direction; 0: unlimited
    jitter_ms: float = 0.0  # each message is late by up to this much more

    def __post_init__(self) -> None:
        for name in ("round_trip_ms", "bandwidth_bytes_per_s", "jitter_ms"):
            require(getattr(self, name) >= 0, name, "must not be negative")

    @property
    def is_emulated(self) -> bool:
        return self != Network()

    def seconds(self, *, exchanges: float, sent_bytes: float) -> float:
        """Time on the line: half a round trip per exchange, and the bytes one way.

        >>> wan = Network(round_trip_ms=40.0, bandwidth_bytes_per_s=44e6)
        >>> wan.seconds(exchanges=100, sent_bytes=88_000_000)
        4.0
        """
        on_the_way = exchanges * self.round_trip_ms / 2000
        if self.bandwidth_bytes_per_s == 0:
            return on_the_way
        return on_the_way + sent_bytes / self.bandwidth_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a party waits before it gives up."""

    connect_s: float = 30.0
    silence_s: float = 300.0  # without any message; must exceed the peer's slowest operation

    def __post_init__(self) -> None:
        for name in ("connect_s", "silence_s"):
            require(getattr(self, name) > 0, name, "must be positive")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All that two parties must agree on, and the network that one of them may emulate."""

    protocol: Protocol
    ring_bits: int = 64
    fraction_bits: int = 18
    dealer: Dealer = Dealer.NONE
    truncation: Truncation = Truncation.FAITHFUL
    reuse_weight_masks: bool = False  # open a weight once a session, where that pays
    owned_weights: bool = False  # kept whole by their owner rather than split into shares
    network: Network = field(default_factory=Network)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        ring, is_semi2k = self.ring_bits, self.protocol is Protocol.SEMI2K
        require(ring in (64, 128), "ring_bits", f"must be 64 or 128, not {ring}")
        # a product has twice the fraction bits, and needs room for its whole part and sign
        most = ring // 2 - 8
        require(
            8 <= self.fraction_bits <= most,
            "fraction_bits",
            f"must lie in [8, {most}] in a ring of {ring} bits, not be {self.fraction_bits}",
        )
        if is_semi2k and self.dealer is Dealer.NONE:
            # it cannot do without, and only the insecure one must be asked for by name
            object.__setattr__(self, "dealer", Dealer.THIRD_PARTY)
        require(
            is_semi2k or self.dealer is Dealer.NONE,
            "dealer",
            f'must be "none": {self.protocol.value} has no dealer',
        )
        require(
            self.truncation is not Truncation.LOCAL or (is_semi2k and ring == 128),
            "truncation",
            'can be "local" under SEMI2K with ring_bits = 128 alone: in a smaller ring it ruins '
            "an inference far too often, and other protocols truncate in their own way",
        )
        require(
            not self.reuse_weight_masks or is_semi2k,
            "reuse_weight_masks",
            "needs SEMI2K: other protocols open no weights",
        )
        # only a gateway between SPU and its dealer sees that no mask hides two things
        require(
            not self.reuse_weight_masks or self.dealer is Dealer.THIRD_PARTY,
            "reuse_weight_masks",
            f'needs dealer = "{Dealer.THIRD_PARTY.value}": without its gateways nothing would '
            "notice a mask that gives secrets away",
        )
        require(
            not self.owned_weights or self.protocol is Protocol.CHEETAH,
            "owned_weights",
            "needs CHEETAH: other protocols gain nothing by it",
        )

    @property
    def resolution(self) -> float:
        """The smallest positive number that can be represented."""
        return 2.0**-self.fraction_bits

    @property
    def magnitude_limit(self) -> float:
        """Beyond this a product wraps around the ring before it is truncated.

        >>> int(Profile(protocol=Protocol.CHEETAH).magnitude_limit) == 2**26
        True
        """
        return 2.0 ** (self.ring_bits - 2 - 2 * self.fraction_bits)

    @property
    def warning(self) -> str:
        """What everyone who sees a result of this profile must know, if anything."""
        if self.dealer is Dealer.FIRST_PARTY_INSECURE:
            return (
                "INSECURE dealer: the model owner makes SEMI2K's randomness and could open every "
                "secret; for measuring only"
            )
        return ""

    @property
    def trust(self) -> str:
        """Whom the owners of model and images must trust."""
        match self.protocol:
            case Protocol.SEMI2K if self.dealer is Dealer.THIRD_PARTY:
                return "the dealer to collude with neither party, and all to follow the protocol"
            case Protocol.SEMI2K:
                return self.warning
            case Protocol.CHEETAH:
                return "nobody, as long as both parties follow the protocol"
            case Protocol.ABY3:
                return "no two of the three to collude, and all to follow the protocol"

    def agreed(self) -> dict[str, Any]:
        """What the parties must have in common."""
        plain = encode(self)
        return {name: plain[name] for name in _AGREED}


def default_profile(dealer: str | None = None) -> str:
    """What private runs take unless told otherwise; of SEMI2K that with a dealer.

    >>> default_profile(), default_profile("dealer.example.org:9100")
    ('cheetah', 'semi2k-dealer')
    """
    return SECURE_DEFAULT if dealer is None else DEALER_DEFAULT


def load_profile(source: str | Path | Profile) -> Profile:
    """Read a profile file, or one that comes with the package by its name.

    >>> load_profile("semi2k-wan").network.round_trip_ms
    40.0
    """
    if isinstance(source, Profile):
        return source
    path = _find(Path(source))
    document = read_toml(path, "profile")
    try:
        return decode(Profile, document, str(path))
    except UserError as error:
        message = str(error)
        raise UserError(message if str(path) in message else f"{path}: {message}") from None


def shipped_profiles() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def _find(path: Path) -> Path:
    """A file where there is one; else the package's own, as NAME or profiles/NAME.toml."""
    if path.is_file():
        return path
    name = path.stem if path.suffix == ".toml" else path.name
    if path in (Path(name), Path(f"{name}.toml"), Path("profiles") / f"{name}.toml"):
        shipped = SHIPPED / f"{name}.toml"
        if shipped.is_file():
            return shipped
        raise UserError(f"there is no profile '{name}'; {nearest(name, shipped_profiles())}")
    raise UserError(f"there is no profile {path}")

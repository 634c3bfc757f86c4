"""Protocols: one row for each. Nothing outside of this file asks for one by its name."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from mpcvit.errors import UserError, nearest


class Dealer(str, Enum):
    """The origin of the correlated randomness that some protocols consume."""

    NONE = "none"
    THIRD_PARTY = "third-party"
    FIRST_PARTY_INSECURE = "first-party-insecure"


class Truncation(str, Enum):
    """A way in which a product drops its additional fraction bits.

    faithful: SPU's default; protocols may pay an exchange for it
    local:    each party shifts its own share, in no exchange; the result is wrong by
              2^(ring_bits - fraction_bits) with a probability that shrinks with the ring
    """

    FAITHFUL = "faithful"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """A way to compute on shares; docs/threat_model.md explains who must trust whom."""

    name: str  # as SPU spells it, and profile files
    parties: int
    trust: str  # what model owner and data owner rely on
    dealers: tuple[Dealer, ...] = (Dealer.NONE,)  # the first is the default
    truncations: tuple[Truncation, ...] = (Truncation.FAITHFUL,)
    counts_rounds: bool = True  # False: seconds cannot be modelled from messages
    reuses_masks: bool = False  # opens weights, whose masks may serve again
    owned_weights: bool = False  # gains from weights that their owner keeps whole
    warms_up: bool = False  # makes keys on first use
    shares_are_sums: bool = False  # a secret is the sum of one number from each party
    has_forecast: bool = False  # `cost/estimate.py` was fitted to runs of it

    @property
    def truncates_locally(self) -> bool:
        """Whether products in the wide ring may take a single exchange."""
        return Truncation.LOCAL in self.truncations

    def encoded(self) -> str:
        return self.name

    @classmethod
    def decoded(cls, document: Any, where: str) -> "Protocol":
        if not isinstance(document, str) or document not in PROTOCOLS:
            raise UserError(
                f"{where} cannot be {document!r}; {nearest(str(document), list(PROTOCOLS))}"
            )
        return PROTOCOLS[document]


_ROWS = (
    Protocol(
        name="SEMI2K",
        parties=2,
        trust="the dealer to collude with neither party, and all to follow the protocol",
        dealers=(Dealer.THIRD_PARTY, Dealer.FIRST_PARTY_INSECURE),
        truncations=(Truncation.FAITHFUL, Truncation.LOCAL),
        reuses_masks=True,
        shares_are_sums=True,
        has_forecast=True,
    ),
    Protocol(
        name="CHEETAH",
        parties=2,
        trust="nobody, as long as both parties follow the protocol",
        counts_rounds=False,  # sends many messages one way
        owned_weights=True,
        warms_up=True,
        shares_are_sums=True,
    ),
    Protocol(
        name="ABY3",
        parties=3,
        trust="no two of the three to collude, and all to follow the protocol",
    ),
)
PROTOCOLS = {row.name: row for row in _ROWS}


def names_with(**properties: Any) -> str:
    """Return the names of the protocols with these properties, for a sentence.

    >>> names_with(parties=2)
    'SEMI2K or CHEETAH'
    """
    expected = properties.items()
    rows = (row for row in _ROWS if all(getattr(row, key) == value for key, value in expected))
    return " or ".join(row.name for row in rows)

"""A third organisation that makes SEMI2K's correlated randomness, and what parties need of it.

Nothing here imports SPU or JAX: a dealer's host needs neither.
"""

from dataclasses import dataclass

SPU_VERSION = "0.9.5"
"""The one whose client, random generator and requests all of this was checked against."""

ADJUSTING, WITNESSING = "server", "client"
PARTIES = (ADJUSTING, WITNESSING)
"""Both parties, as their certificates name them and in the order that SPU counts them.

The first gets the dealer's material; the second watches that nothing else is asked for.
"""


@dataclass(frozen=True, kw_only=True)
class DealerTerms:
    """The terms of a dealer: what it says about itself."""

    spu: str  # version
    key: str  # fingerprint

"""Whether a program's guard is worth its cost, found by counting."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mpcvit.artifacts.profile import NetworkLink, Profile, load_profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import StageCost
from mpcvit.lowering import Guard
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.run import run

Progress = Callable[[str, int, int], None]

MOST_OF_SECONDS = 0.03  # that a guard may cost to be on by default
_WAN = "semi2k-wan"


@dataclass(frozen=True, kw_only=True)
class GuardCost:
    """An image's exchanges and bytes without a guard, and with it."""

    without: StageCost
    guarded: StageCost

    @property
    def share(self) -> float:
        """Of the seconds on a WAN, computing left out."""
        before, after = (_seconds(cost, _wan()) for cost in (self.without, self.guarded))
        return after / before - 1

    def __str__(self) -> str:
        exchanges = self.guarded.exchanges - self.without.exchanges
        sent_bytes = self.guarded.sent_bytes - self.without.sent_bytes
        return (
            f"{exchanges:,} exchanges and {sent_bytes / 1e6:,.2f} MB an image, "
            f"{100 * self.share:.1f} % of the seconds on a WAN"
        )


def with_guard(
    program: SecureProgram,
    profile: Profile,
    guard: Guard,
    progress: Progress = lambda what, done, total: None,
) -> tuple[SecureProgram, GuardCost]:
    """Return a program with its guard on, off, or on if it costs little; and what it costs.

    Counted in the simulator, on a picture of zeros, where the class is revealed.
    """
    costs: dict[bool, StageCost] = {}
    for is_on in (False, True):
        costs[is_on] = _count(_guarded(program, is_on), profile)
        progress("counting the guard", len(costs), 2)
    cost = GuardCost(without=costs[False], guarded=costs[True])
    is_on = guard is Guard.ON or (guard is Guard.AUTO and cost.share <= MOST_OF_SECONDS)
    return _guarded(program, is_on), cost


def _guarded(program: SecureProgram, is_on: bool) -> SecureProgram:
    return program.changed(trust=replace(program.public.trust, guard=is_on), scripts={})


def _count(program: SecureProgram, profile: Profile) -> StageCost:
    size = program.model.image_size
    pixels = np.zeros((1, size, size, program.model.channels), np.uint8)
    if profile.dealer is Dealer.THIRD_PARTY:  # who makes the randomness does not change counts
        profile = replace(profile, dealer=Dealer.FIRST_PARTY_INSECURE)
    return run(program, pixels, profile, simulate=True).record.batches[0].total


def _seconds(cost: StageCost, network: NetworkLink) -> float:
    sent_bytes = max(cost.sent_bytes, cost.received_bytes)
    return network.seconds(exchanges=cost.exchanges, sent_bytes=sent_bytes)


def _wan() -> NetworkLink:
    return load_profile(_WAN).network

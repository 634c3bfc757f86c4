"""From a checkpoint to a program for a profile: lower it, count its guard, rehearse its script.

Guard and script need SPU, which `lowering` does not know. So this is above both.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.profile import SECURE_DEFAULT, NetworkLink, Profile, load_profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import StageCost
from mpcvit.data.images import list_skipped, read_photos
from mpcvit.errors import UserError
from mpcvit.lowering import ERROR_BUDGET, Guard
from mpcvit.lowering.lower import checkpoint_of
from mpcvit.lowering.lower import lower as lower_network
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.dealing.rehearsal import with_script
from mpcvit.secure.run import run

Progress = Callable[[str, int, int], None]

MOST_OF_SECONDS = 0.03  # that a guard may cost to be on by default
_WAN = "semi2k-wan"


def lower(
    model: Any,
    images: Any,
    profile: str | Path | Profile = SECURE_DEFAULT,
    *,
    error_budget: float = ERROR_BUDGET,
    guard: Guard | str = Guard.AUTO,
    batch_size: int = 1,
    strict: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """Turn a model into a program of few exchanges, ready for a profile.

    `model` is a checkpoint, its file or a classifier. `images` are a folder of photos, or
    files or uint8 arrays [height, width, channel], of the kind that the program will see.
    Labels are not needed. A folder's files that cannot be read are left out with a
    warning, unless `strict`. The fewer the images, the wider are the margins of intervals.
    The intervals become public with the program's use; weights and images do not.
    `error_budget` bounds the effect of all approximations together: the root mean
    square of the logits' errors over the images, in parts of their spread.
    `guard` says whether private runs refuse to answer where a value left its interval:
    "on", "off", or "auto" for where that costs at most 3 % of the seconds on a WAN.
    For a profile with a dealer, the program carries the scripts of what it will ask of
    the dealer for `batch_size` images at a time.
    """
    settings, wanted = load_profile(profile), _read_guard(guard)
    if isinstance(images, str | Path):
        model = checkpoint_of(model)
        photos = read_photos(
            Path(images), model.model, model.data, strict=strict, progress=progress
        )
        if photos.skipped:
            warnings.warn(f"left out: {list_skipped(photos.skipped)}", stacklevel=2)
        images = photos
    program = lower_network(model, images, settings, error_budget=error_budget, progress=progress)
    program, cost = with_guard(program, settings, wanted, progress)
    calibration = replace(program.calibration, guard_cost=str(cost))
    program = replace(program, calibration=calibration)
    return with_script(program, settings, batch_size=batch_size, progress=progress)


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


def _read_guard(guard: Guard | str) -> Guard:
    try:
        return Guard(guard)
    except ValueError:
        known = ", ".join(repr(own.value) for own in Guard)
        raise UserError(f"a guard is one of {known}, not {guard!r}") from None


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

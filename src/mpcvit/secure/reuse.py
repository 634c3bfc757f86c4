"""When masks of kernels are reused: the one place that decides it."""

from dataclasses import replace

from mpcvit.artifacts.profile import Profile
from mpcvit.secure.card import ModelCard

LEAST_RUNS = 3
"""Runs of the network in a session from which a set-up pays.

It sends every kernel twice, and each run then sends it no more. So it sends less from the third
run on. By the clock it has paid from the second to the fourth run on, depending on the network
(`pays_from` in results/secure/lowering-dealer.csv).
"""


def settled(profile: Profile, card: ModelCard, runs: int) -> Profile:
    """Return a profile for a session of a number of runs: without reuse if it does not pay.

    Networks that were not lowered never reuse masks, as their products are not
    known to be of the one form that can.
    """
    reuse = profile.reuse_weight_masks and card.public.plan is not None and runs >= LEAST_RUNS
    return replace(profile, reuse_weight_masks=reuse)

"""Mixup and cutmix between neighbours of a batch, and the soft targets that follow.

Position i is mixed with i XOR 1. So every even slice of a batch is closed under
mixing, and what a host computes for its slice does not depend on how many there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Box = tuple[int, int, int, int]  # top, bottom, left, right


@dataclass(frozen=True, kw_only=True)
class Mix:
    """A mix of one pair: both keep `lam` of themselves and take the rest from the other."""

    lam: float = 1.0
    box: Box | None = None  # cutmix takes the rest as this box, mixup as a blend


def draw_mix(
    rng: np.random.Generator,
    *,
    height: int,
    width: int,
    mixup: float,
    cutmix: float,
    probability: float = 1.0,
    switch: float = 0.5,
) -> Mix:
    """Decide how one pair is mixed.

    With `probability` it is mixed at all; where both are on, `switch` is the chance of
    cutmix. lam ~ Beta(a, a) with a = `mixup` or `cutmix`, where 0 turns one off. The
    box of cutmix has sides sqrt(1 - lam) of the image's around a uniform centre; what
    sticks out is cut off and lam becomes the share that is really kept.
    """
    if mixup == cutmix == 0 or rng.random() >= probability:
        return Mix()
    by_box = cutmix > 0 and (mixup == 0 or rng.random() < switch)
    lam = rng.beta(cutmix, cutmix) if by_box else rng.beta(mixup, mixup)
    if not by_box:
        return Mix(lam=lam)
    side = math.sqrt(1 - lam)
    top, bottom = _clipped_span(height, side, rng)
    left, right = _clipped_span(width, side, rng)
    kept = 1 - (bottom - top) * (right - left) / (height * width)
    return Mix(lam=kept, box=(top, bottom, left, right))


def mix(images: np.ndarray, mixes: Sequence[Mix]) -> np.ndarray:
    """Mix each pair of a batch [batch, height, width, channel], `mixes` having one per pair.

        mixup:  x[i] = lam * x[i] + (1 - lam) * x[i ^ 1]
        cutmix: x[i] = x[i ^ 1] inside of the box, x[i] outside

    >>> pair = np.array([2, 10], np.float32).reshape(2, 1, 1, 1)
    >>> mix(pair, [Mix(lam=0.75)]).ravel().tolist()
    [4.0, 8.0]
    """
    if len(images) != 2 * len(mixes):
        raise ValueError(f"{len(images)} images cannot be mixed as {len(mixes)} pairs")
    mixed = images.copy()
    for pair, choice in enumerate(mixes):
        one, other = images[2 * pair], images[2 * pair + 1]
        both = mixed[2 * pair : 2 * pair + 2]
        if choice.box is not None:
            top, bottom, left, right = choice.box
            both[0, top:bottom, left:right] = other[top:bottom, left:right]
            both[1, top:bottom, left:right] = one[top:bottom, left:right]
        elif choice.lam != 1:
            # one difference serves both: x - (1 - lam) (x - y) and y + (1 - lam) (x - y)
            shift = (one - other) * np.float32(1 - choice.lam)
            both[0] -= shift
            both[1] += shift
    return mixed


def partners(labels: np.ndarray) -> np.ndarray:
    """Return the labels of each position's partner.

    >>> partners(np.array([5, 6, 7, 8])).tolist()
    [6, 5, 8, 7]
    """
    return labels.reshape(-1, 2)[:, ::-1].reshape(-1)


def soft_targets(
    labels: np.ndarray,
    partner_labels: np.ndarray,
    lam: np.ndarray,
    classes: int,
    smoothing: float,
) -> np.ndarray:
    """Return the targets of mixed images: probabilities float32 [batch, classes].

        t = (1 - smoothing) * (lam * onehot(y) + (1 - lam) * onehot(y')) + smoothing / classes

    Each row sums to 1. The label -1 is no class: its part is spread evenly over all.

    >>> soft_targets(np.array([0]), np.array([2]), np.array([0.75]), 4, 0.0).tolist()
    [[0.75, 0.0, 0.25, 0.0]]
    """
    targets = np.full((len(labels), classes), smoothing / classes, np.float32)
    rows = np.arange(len(labels))
    for own, weight in (
        (labels, (1 - smoothing) * lam),
        (partner_labels, (1 - smoothing) * (1 - lam)),
    ):
        known = own >= 0
        targets[rows[known], own[known]] += weight[known]
        targets[~known] += weight[~known, None] / classes
    return targets


def _clipped_span(length: int, side: float, rng: np.random.Generator) -> tuple[int, int]:
    half = int(length * side) // 2
    centre = int(rng.random() * length)
    return max(centre - half, 0), min(centre + half, length)

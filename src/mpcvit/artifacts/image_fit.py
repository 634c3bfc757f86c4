"""How a picture gets the model's size, as in the project that the model comes from."""

from dataclasses import dataclass, field, replace
from enum import Enum

from mpcvit.codec import ADDED, require

_LARGEST_EDGE = 8192


class FitRule(str, Enum):
    """A rule for the part of a picture that is kept, and for its proportions.

    cut:     the largest square in the middle, scaled in one step
    shorter: the shorter side is scaled to `edge` pixels, then the middle is cut out
    squash:  both sides are scaled to `edge` pixels, then the middle is cut out
    """

    CUT = "cut"
    SHORTER = "shorter"
    SQUASH = "squash"


class Resample(str, Enum):
    """Pillow's filters, by its names."""

    NEAREST = "nearest"
    BOX = "box"
    BILINEAR = "bilinear"
    HAMMING = "hamming"
    BICUBIC = "bicubic"
    LANCZOS = "lanczos"


@dataclass(frozen=True, kw_only=True)
class ImageFit:
    """A way in which a picture gets the model's size."""

    rule: FitRule = FitRule.CUT
    edge: int = 0  # pixels after scaling, before the middle is cut out; 0: the model's size
    resample: Resample = Resample.BICUBIC
    rounds_half: bool = False  # where the middle starts: rounded as in torchvision, or down
    uncovered: int = field(default=0, metadata=ADDED)  # pixels at the right and below, left out

    def __post_init__(self) -> None:
        require(0 <= self.edge <= _LARGEST_EDGE, "edge", f"must lie within 0 and {_LARGEST_EDGE:,}")
        require(
            not self.edge or self.rule is not FitRule.CUT,
            "edge",
            'is for fit.rule = "shorter" or "squash"; "cut" has data.eval_crop',
        )
        require(
            self.uncovered == 0 or (self.uncovered > 0 and self.rule is not FitRule.CUT),
            "uncovered",
            'must not be negative, and is for fit.rule = "shorter" or "squash"',
        )

    def edge_for(self, size: int) -> int:
        """Return the pixels to scale to for a model's size."""
        return self.edge or self.whole(size)

    def whole(self, size: int) -> int:
        """Return the size of the prepared picture; the model reads its left upper part.

        Patches of 14 cover 378 pixels of 384: the other six are `uncovered`.
        """
        return size + self.uncovered

    def scaled(self, before: int, after: int) -> "ImageFit":
        """Return the fit for another size of the model: the same part of a picture.

        >>> ImageFit(rule=FitRule.SQUASH, edge=256).scaled(224, 112).edge
        128
        """
        if before == after:
            return self
        return replace(self, edge=round(self.edge * after / before), uncovered=0)

    def describe(self, size: int, crop: float = 1.0) -> str:
        """Return the rule as a phrase.

        >>> ImageFit(rule=FitRule.SQUASH, edge=256).describe(224)
        'both sides scaled to 256 (bicubic), then the middle 224 x 224'
        >>> ImageFit().describe(32)
        'the largest square in the middle, scaled to 32 x 32 (bicubic)'
        >>> ImageFit(rule=FitRule.SQUASH, uncovered=6).describe(378)
        'both sides scaled to 384 (bicubic), where patches cover 378 x 378'
        """
        filter, edge, whole = self.resample.value, self.edge_for(size), self.whole(size)
        if self.rule is FitRule.CUT:
            part = "the largest square in the middle"
            if crop != 1:
                part = f"the middle {100 * crop:g} % of the shorter side, as a square"
            return f"{part}, scaled to {size} x {size} ({filter})"
        sides = "both sides" if self.rule is FitRule.SQUASH else "the shorter side"
        is_whole = self.rule is FitRule.SQUASH and edge == whole
        cut = "" if is_whole else f", then the middle {whole} x {whole}"
        rest = f", where patches cover {size} x {size}" if self.uncovered else ""
        return f"{sides} scaled to {edge} ({filter}){cut}{rest}"

"""Draws who took part in a private run: what each held, learnt, and never saw."""

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mpcvit.artifacts.learnt import Learner

_LINE, _PAD, _CHARACTER = 19, 14, 9.0
"""Height of a line, room within a box, and the width of a bold character, in pixels."""


@dataclass(frozen=True)
class _Box:
    learner: Learner
    left: float
    top: float
    width: float

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The words of the box, each with its style."""
        one, most = self.learner, int((self.width - 2 * _PAD) / _CHARACTER)
        texts = (
            ("holds", f"holds {one.holds}"),
            ("learns", f"learnt {one.learns}" if not one.could_see_all else one.learns),
            ("hidden", f"saw {one.never_sees}" if not one.could_see_all else one.never_sees),
        )
        return [
            ("who", f"{one.who[0].upper()}{one.who[1:]}"),
            *((style, line) for style, text in texts for line in textwrap.wrap(text, most)),
        ]

    @property
    def height(self) -> float:
        return 2 * _PAD + _LINE * len(self.lines)

    @property
    def middle(self) -> tuple[float, float]:
        return self.left + self.width / 2, self.top + self.height / 2


def draw_parties(learners: Sequence[Learner]) -> str:
    """Return two drawings of the same: one for wide pages, one for phones."""
    wide = _drawing(*_side_by_side(learners), "wide")
    return wide + _drawing(*_one_below_another(learners), "narrow")


Layout = tuple[list[_Box], float, float]


def _side_by_side(learners: Sequence[Learner]) -> Layout:
    width, gap = 350.0, 210.0
    total = 2 * width + gap
    pair = [
        _Box(learner, place * (width + gap) + 1, 1, width)
        for place, learner in enumerate(learners[:2])
    ]
    bottom = max(box.height for box in pair)
    boxes = pair + [
        _Box(learner, (total - width) / 2, bottom + 60, width) for learner in learners[2:]
    ]
    return boxes, total + 2, max(box.top + box.height for box in boxes) + 2


def _one_below_another(learners: Sequence[Learner]) -> Layout:
    boxes, top = [], 1.0
    for learner in learners:
        boxes.append(_Box(learner, 1, top, 330))
        top += boxes[-1].height + 74
    return boxes, 332, top - 72


def _drawing(boxes: list[_Box], width: float, height: float, form: str) -> str:
    words = "; ".join(f"{box.learner.who}: {box.learner.words}" for box in boxes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="parties {form}" role="img" '
        f'viewBox="0 0 {width:g} {height:g}" aria-label="{html.escape(words, quote=True)}">'
        f"{''.join(_arrows(boxes, form))}{''.join(_draw_box(box) for box in boxes)}</svg>"
    )


def _draw_box(box: _Box) -> str:
    risk = " risk" if box.learner.could_see_all else ""
    lines = "".join(
        f'<text class="{style}" x="{box.left + _PAD:g}" '
        f'y="{box.top + _PAD + _LINE * (place + 0.75):g}">{html.escape(text)}</text>'
        for place, (style, text) in enumerate(box.lines)
    )
    return (
        f'<rect class="party{risk}" x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" '
        f'height="{box.height:g}" rx="8"/>{lines}'
    )


def _arrows(boxes: list[_Box], form: str) -> Iterator[str]:
    """Yield what is sent: shares between the owners, and random numbers of a dealer."""
    first, second = boxes[:2]
    if form == "narrow":
        for above, below in pairwise(boxes):
            x = above.left + 60
            top, bottom = above.top + above.height, below.top
            is_pair = below is second
            yield _arrow(x, bottom, x, top, both=is_pair)
            yield from _label(x + 12, (top + bottom) / 2 - 5, _sent(below, is_pair), "start")
        return
    y = first.top + 46
    left, right = first.left + first.width, second.left
    yield _arrow(left, y, right, y, both=True)
    yield from _label((left + right) / 2, y - 34, _sent(second, True), "middle")
    for third in boxes[2:]:
        x, y = third.middle[0], third.top
        for owner in (first, second):
            target_x, bottom = owner.middle[0], owner.top + owner.height
            yield _arrow(x, y, target_x, bottom, both=False)
        yield from _label(x, y - 44, _sent(third, False), "middle")


def _sent(box: _Box, is_pair: bool) -> tuple[str, ...]:
    if is_pair or box.learner.holds.startswith("shares"):
        return ("shares: numbers that", "look random to each side")
    return ("random numbers,", "made before the images")


def _arrow(x1: float, y1: float, x2: float, y2: float, *, both: bool) -> str:
    heads = _head(x1, y1, x2, y2) + (_head(x2, y2, x1, y1) if both else "")
    return f'<line class="sent" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>{heads}'


def _head(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return the head of an arrow at its second end."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5 or 1.0
    along = (x2 - x1) / length, (y2 - y1) / length
    back = x2 - 11 * along[0], y2 - 11 * along[1]
    sides = (
        f"{back[0] + turn * 5 * along[1]:.1f},{back[1] - turn * 5 * along[0]:.1f}"
        for turn in (1, -1)
    )
    return f'<polygon class="tip" points="{x2:.1f},{y2:.1f} {" ".join(sides)}"/>'


def _label(x: float, y: float, lines: Sequence[str], anchor: str) -> Iterator[str]:
    for place, line in enumerate(lines):
        yield (
            f'<text class="label" x="{x:g}" y="{y + 16 * place:g}" text-anchor="{anchor}">'
            f"{html.escape(line)}</text>"
        )

"""Draws who took part in a private run: what each held, learnt, and never saw."""

import html
from collections.abc import Sequence

from mpcvit.secure.learnt import Learner

_SHARES = "shares: numbers that look random to each side"
_DEALT = "random numbers, made before the images"


def draw_parties(learners: Sequence[Learner]) -> str:
    """Return boxes with arrows between them: the owners side by side, and a third below.

    The style of the page puts all of them below each other where it is narrow.
    """
    first, second, *thirds = map(_box, learners)
    parts = [first, _arrows("shared", _SHARES), second]
    for learner, box in zip(learners[2:], thirds, strict=True):
        is_party = learner.holds.startswith("shares")
        form, label = ("shared", _SHARES) if is_party else ("dealt", _DEALT)
        parts += [_arrows(f"up {form}", label), box]
    return f'<div class="parties">{"".join(parts)}</div>'


def _box(one: Learner) -> str:
    learns, hidden = f"learnt {one.learns}", f"saw {one.never_sees}"
    if one.could_see_all:
        learns, hidden = one.learns, one.never_sees
    lines = (
        ("who", f"{one.who[0].upper()}{one.who[1:]}"),
        ("holds", f"holds {one.holds}"),
        ("learns", learns),
        ("hidden", hidden),
    )
    words = "".join(f'<p class="{style}">{html.escape(text)}</p>' for style, text in lines)
    return f'<div class="party{" risk" * one.could_see_all}">{words}</div>'


def _arrows(form: str, label: str) -> str:
    """Return an arrow, and a second one for where a third party reaches both owners."""
    second = "<i></i>" if form.startswith("up") else ""
    return f'<div class="sent {form}"><i></i><p>{label}</p>{second}</div>'

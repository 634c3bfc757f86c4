"""Draws the method in one picture: search, distil, lower, run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcvit.storage import replacing


@dataclass(frozen=True)
class _Step:
    command: str
    does: str
    gives: str


_STEPS = (
    _Step(
        "search",
        "learn which heads need\nthe expensive attention,\nwith seconds in the loss",
        "architecture",
    ),
    _Step("distil", "retrain that network\nwith the softmax ViT\nas its teacher", "checkpoint"),
    _Step("lower", "fold what is linear,\napproximate the rest\nby short polynomials", "program"),
    _Step(
        "run",
        "compute on shares:\nthe client learns the class,\nthe server no image",
        "class, cost",
    ),
)
_BLUE, _ORANGE, _GREY = "#0072B2", "#D55E00", "#555555"
_WIDTH, _GAP, _TOP, _BOTTOM = 2.5, 1.2, 1.9, 0.55


def draw_method() -> Any:
    """Return the picture as a matplotlib figure: a box per step, an arrow per artifact."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    length = len(_STEPS) * _WIDTH + len(_STEPS) * _GAP
    figure = Figure(figsize=(length * 0.66, 1.35))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(-0.1, length), ylim=(0.45, 2.0))
    axes.axis("off")
    for index, step in enumerate(_STEPS):
        left = index * (_WIDTH + _GAP)
        middle = left + _WIDTH / 2
        colour = _ORANGE if step.command == "run" else _BLUE
        axes.add_patch(
            FancyBboxPatch(
                (left, _BOTTOM),
                _WIDTH,
                _TOP - _BOTTOM,
                boxstyle="round,pad=0.02,rounding_size=0.12",
                facecolor=colour + "14",
                edgecolor=colour,
            )
        )
        style: Any = {"ha": "center", "va": "center"}
        axes.text(middle, 1.62, step.command, color=colour, weight="bold", size=12, **style)
        axes.text(middle, 1.02, step.does, color="black", size=8, linespacing=1.4, **style)
        right = left + _WIDTH
        arrow = {"arrowstyle": "-|>", "color": _GREY, "lw": 1.4}
        axes.annotate("", (right + _GAP - 0.06, 1.25), (right + 0.06, 1.25), arrowprops=arrow)
        axes.text(right + _GAP / 2, 1.0, step.gives, color=_GREY, size=8, style="italic", **style)
    return figure


def write_method(path: Path) -> Path:
    """Write the picture as a PNG file, and return its path."""
    with replacing(path) as temporary:
        draw_method().savefig(temporary, format="png", dpi=200)
    return path

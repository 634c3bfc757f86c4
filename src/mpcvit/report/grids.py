"""Draws small pictures of layers: a square for each place, with its letter."""

from typing import Any

from mpcvit.report.charts.chart import GridChart, Panel
from mpcvit.report.palette import colour_of, ink_on

_ENTRY = 1.8  # inches of a legend's entry


def draw(panel: Any, chart: GridChart, tips: dict[str, list[str]], room: float) -> None:
    columns = _columns(chart, room)
    lines = -(-len(chart.panels) // columns)
    sheets = panel.subplots(lines, columns, squeeze=False).reshape(-1)
    for index, (axes, picture) in enumerate(zip(sheets, chart.panels, strict=False)):
        _draw_picture(axes, picture, chart, tips, f"{chart.id}-{index}")
    for axes in sheets[len(chart.panels) :]:
        axes.set_visible(False)
    if chart.kinds:
        from matplotlib.patches import Patch

        patches = [Patch(color=colour_of(hue), label=kind) for kind, hue in chart.kinds.items()]
        style = {"ncols": _legend_columns(chart, room), "fontsize": "small", "framealpha": 0}
        panel.legend(handles=patches, loc="outside lower center", **style)


def _draw_picture(
    axes: Any, panel: Panel, chart: GridChart, tips: dict[str, list[str]], name: str
) -> None:
    from matplotlib.patches import Rectangle

    few = len(panel.columns) <= 16  # else there is no room for letters
    for layer, cells in enumerate(panel.cells):
        for column, cell in enumerate(cells):
            shade = 1.0 if cell.share is None else 0.1 + 0.9 * cell.share
            colour = colour_of(chart.kinds.get(cell.kind, 0))
            square = Rectangle((column, layer), 0.94, 0.94, facecolor=colour, alpha=shade)
            square.set_gid(f"{name}-{layer}-{column}")
            words = f"layer {layer}, {panel.columns[column]}: {cell.words}"
            tips[f"{name}-{layer}-{column}"] = [f"{panel.name}\n{words}"]
            axes.add_patch(square)
            if few:
                ink = ink_on(colour) if shade == 1 else "white" if shade > 0.8 else "black"
                style = {"ha": "center", "va": "center", "color": ink, "fontsize": 7}
                axes.text(column + 0.47, layer + 0.5, cell.text, **style)
    names = [_column_name(text) for text in panel.columns]
    ticks = range(0, len(names), 1 if few else 8)
    axes.set_xticks([tick + 0.47 for tick in ticks], [names[tick] for tick in ticks], fontsize=7)
    layers = range(len(panel.cells))
    axes.set_yticks([layer + 0.47 for layer in layers], layers, fontsize=7)
    aspect = "equal" if few else "auto"
    axes.set(xlim=(0, len(names)), ylim=(len(panel.cells), 0), aspect=aspect)
    short = panel.name if len(panel.name) <= 32 else panel.name[:31] + "…"
    axes.set_title(short, fontsize=8)
    axes.set_ylabel("layer", fontsize=7)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _column_name(text: str) -> str:
    """Return a column's name in the width of a cell.

    >>> _column_name("head 3"), _column_name("all tokens"), _column_name("activation")
    ('3', 'all\\ntokens', 'act.')
    """
    words = text.removeprefix("head ").split()
    return "\n".join(word if len(word) <= 7 else f"{word[:3]}." for word in words)


def size(chart: GridChart, room: float) -> tuple[float, float]:
    """Return width and height in inches where there is so much room."""
    lines = -(-len(chart.panels) // _columns(chart, room))
    legend = 0.2 * -(-len(chart.kinds) // _legend_columns(chart, room))
    tallest = max(len(panel.cells) for panel in chart.panels)
    return _width(chart, room), lines * (0.3 * tallest + 1.0) + 0.4 + legend


def _columns(chart: GridChart, room: float) -> int:
    """Return how many pictures stand side by side; in wider lines, letters would be tiny."""
    return max(1, min(3, len(chart.panels), int(1.1 * room / _panel_width(chart))))


def _panel_width(chart: GridChart) -> float:
    return 0.34 * min(max(len(panel.columns) for panel in chart.panels), 16) + 1.0


def _width(chart: GridChart, room: float) -> float:
    return max(4.0, _columns(chart, room) * _panel_width(chart))


def _legend_columns(chart: GridChart, room: float) -> int:
    return min(4, max(1, int(_width(chart, room) / _ENTRY)))

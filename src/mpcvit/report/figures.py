"""The report's charts on paper: PNG and SVG by matplotlib, from the same data as the page's."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpcvit.report.charts.chart import BarChart, Chart, GridChart, Panel, XYChart
from mpcvit.storage import replacing

FORMATS = ("png", "svg")
# Okabe and Ito's colours, which most kinds of sight tell apart.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#882255", "#666666"),
)
_MARKERS = "osD^v"


def write_figures(
    folder: Path,
    charts: Sequence[Chart],
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write each chart as one file per format, and return the files."""
    import matplotlib

    written = []
    for done, chart in enumerate(charts):
        progress("drawing", done, len(charts))
        # text stays text, to be searched and edited; and equal charts give equal files
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.id}):
            figure = _figure(chart)
            for form in formats:
                path = folder / f"{chart.id}.{form}"
                metadata = {"Date": None} if form == "svg" else {}
                with replacing(path) as temporary:
                    figure.savefig(temporary, format=form, dpi=200, metadata=metadata)
                written.append(path)
    return written


def _figure(chart: Chart) -> Any:
    match chart:
        case XYChart():
            return _plane(chart)
        case BarChart():
            return _bars(chart)
        case GridChart():
            return _grids(chart)


def _plane(chart: XYChart) -> Any:
    figure, axes = _sheet(7.0, 4.2 + 0.1 * len(chart.series))
    for series in chart.series:
        xs, ys = ([getattr(point, axis) for point in series.points] for axis in "xy")
        published = series.origin == "published"
        axes.plot(
            xs,
            ys,
            linestyle="--" if series.dashed else "-",
            linewidth=6 if series.hue < 0 else 1.3,
            alpha=0.3 if series.hue < 0 else 1,
            marker=_MARKERS[series.mark % len(_MARKERS)] if series.marked else "",
            markersize=5,
            markerfacecolor="white" if published else None,
            color=_colour(series.hue),
            label=series.name,
        )
        for point in series.points:
            if series.marked and point.low is not None and point.high is not None:
                axes.vlines(point.x, point.low, point.high, colors=_colour(series.hue), alpha=0.6)
    if chart.log:
        axes.set(xscale="log", yscale="log")
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    if chart.whole_x:
        axes.locator_params(axis="x", integer=True)
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, title=chart.title)
    axes.grid(alpha=0.3)
    _legend(figure, axes, len(chart.series))
    return figure


def _bars(chart: BarChart) -> Any:
    lines = 1 if chart.stacked else len(chart.series)
    step = lines + 0.6
    figure, axes = _sheet(7.0, 1.2 + 0.15 * len(chart.categories) * step)
    before = [0.0] * len(chart.categories)
    for offset, series in enumerate(chart.series):
        known = [(place, value) for place, value in enumerate(series.values) if value is not None]
        published = series.origin == "published"
        axes.barh(
            [step * place + (0 if chart.stacked else offset) for place, _ in known],
            [value for _, value in known],
            left=[before[place] for place, _ in known] if chart.stacked else None,
            height=0.85,
            color="white" if published else _colour(series.hue),
            edgecolor=_colour(series.hue),
            linestyle="--" if published else "-",
            label=series.name,
        )
        for place, value in known:
            before[place] += value
    centre = 0 if chart.stacked else (lines - 1) / 2
    places = [step * place + centre for place in range(len(chart.categories))]
    axes.set_yticks(places, chart.categories)
    axes.margins(y=0.02)
    axes.invert_yaxis()
    axes.set(xlabel=chart.value_label, title=chart.title)
    axes.grid(axis="x", alpha=0.3)
    # beside the bars there may be no room
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _grids(chart: GridChart) -> Any:
    from matplotlib.figure import Figure

    columns = min(3, len(chart.panels))
    lines = -(-len(chart.panels) // columns)
    widest = max(len(panel.columns) for panel in chart.panels)
    tallest = max(len(panel.cells) for panel in chart.panels)
    figure = Figure(
        figsize=(columns * (0.34 * widest + 1.0), lines * (0.3 * tallest + 0.9) + 0.5),
        layout="constrained",
    )
    places = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    for axes, panel in zip(places, chart.panels, strict=False):
        _draw_panel(axes, panel, chart)
    for axes in places[len(chart.panels) :]:
        axes.set_visible(False)
    if chart.kinds:
        from matplotlib.patches import Patch

        patches = [Patch(color=_colour(hue), label=kind) for kind, hue in chart.kinds.items()]
        figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize="small")
    figure.suptitle(chart.title)
    return figure


def _draw_panel(axes: Any, panel: Panel, chart: GridChart) -> None:
    from matplotlib.patches import Rectangle

    for layer, cells in enumerate(panel.cells):
        for column, cell in enumerate(cells):
            shade = 1.0 if cell.share is None else 0.1 + 0.9 * cell.share
            colour = _colour(chart.kinds.get(cell.kind, 0))
            axes.add_patch(
                Rectangle((column, layer), 0.94, 0.94, facecolor=colour, alpha=shade, linewidth=0)
            )
            ink = "white" if shade > 0.55 else "black"
            axes.text(
                *(column + 0.47, layer + 0.5, cell.text),
                **{"ha": "center", "va": "center", "color": ink, "fontsize": 7},
            )
    shown = [name.removeprefix("head ") for name in panel.columns]
    axes.set_xticks([column + 0.47 for column in range(len(shown))], shown, fontsize=7)
    axes.set_yticks(
        [layer + 0.47 for layer in range(len(panel.cells))], range(len(panel.cells)), fontsize=7
    )
    axes.set(xlim=(0, len(shown)), ylim=(len(panel.cells), 0), aspect="equal")
    axes.set_title(_shortened(panel.name), fontsize=8)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _shortened(name: str, most: int = 32) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _sheet(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Any, axes: Any, entries: int) -> None:
    """Inside where there are few, below where many would hide the chart."""
    if entries <= 4:
        axes.legend(fontsize="small")
    else:
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")


def _colour(hue: int) -> str:
    return "#999999" if hue < 0 else _COLOURS[hue % len(_COLOURS)]

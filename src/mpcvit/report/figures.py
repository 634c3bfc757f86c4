"""Draws charts with matplotlib: as files, and as SVG for the page."""

import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mpcvit.errors import needs_extra
from mpcvit.progress import Progress, counted, quiet
from mpcvit.report import grids
from mpcvit.report.charts.chart import BarChart, Chart, GridChart, XYChart
from mpcvit.report.palette import colour_of
from mpcvit.storage import replacing

FORMATS = ("png", "svg")
_WIDE, _NARROW = 7.0, 4.0  # inches of a chart on a desk, and on a phone
# What tells series apart without colour: markers, dashes and hatches.
_MARKERS = "osD^v"
_DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
_HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Offsets in points and alignments of a label: right, left, above, below, and beside an edge.
_SIDES = (
    ((5, 0), "left", "center"),
    ((-5, 0), "right", "center"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
    ((-3, 6), "left", "bottom"),
    ((-3, -6), "left", "top"),
    ((-3, 14), "left", "bottom"),
)


def write_figure(path: Path, charts: Sequence[Chart], dpi: int = 120) -> None:
    """Write charts as panels of one picture, in the format that the file's name ends with."""
    form = path.suffix[1:]
    with _settings(charts[0].id), replacing(path) as temporary:
        metadata = {"Date": None} if form == "svg" else {}
        draw(charts).savefig(temporary, format=form, dpi=dpi, metadata=metadata)


def write_figures(
    folder: Path,
    charts: Sequence[Chart],
    progress: Progress = quiet,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write each chart as one file per format, and return the files."""
    written = []
    for chart in counted("drawing", charts, progress):
        for form in formats:
            written.append(folder / f"{chart.id}.{form}")
            write_figure(written[-1], [chart], dpi=200)
    return written


def to_svg(chart: Chart, *, narrow: bool = False) -> str:
    """Return a chart as an SVG element, in which every value has a tooltip.

    A narrow one has fewer things side by side, so that its text can be read on a phone.
    """
    content, form = io.StringIO(), "narrow" if narrow else "wide"
    with _settings(f"{chart.id}-{form}"):
        figure = draw([chart], titled=False, room=_NARROW if narrow else _WIDE)
        figure.savefig(content, format="svg", transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(content.getvalue())
    for metadata in root.findall(f"{{{_SVG}}}metadata"):
        root.remove(metadata)
    tips = figure.tips  # type: ignore[attr-defined]
    referenced = set(re.findall(r'(?:href="|url\()#([^")]+)', content.getvalue()))
    for element in list(root.iter()):
        if (address := element.attrib.pop(f"{{{_XLINK}}}href", None)) is not None:
            element.set("href", address)
        name = element.get("id", "")
        if name and name not in referenced:  # those of other charts would be the same
            del element.attrib["id"]
        if name in tips:
            # each marker of a line, or the bar or cell itself
            marked = element.findall(f".//{{{_SVG}}}use") or [element]
            for target, text in zip(marked, tips[name], strict=False):
                title = ElementTree.Element(f"{{{_SVG}}}title")
                title.text = text
                target.insert(0, title)
    # a small drawing is not blown up to the page's width, and a large one scrolls on a phone
    width = float(root.attrib["width"].removesuffix("pt"))
    root.set("style", f"max-width: {1.32 * width:.0f}pt; min-width: {0.8 * width:.0f}pt")
    root.set("class", form)
    root.set("role", "img")
    root.set("aria-label", chart.title)
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    # ink follows the page, which may be dark
    return text.replace("#000000", "currentColor")


def draw(charts: Sequence[Chart], *, titled: bool = True, room: float = _WIDE) -> Any:
    """Return a matplotlib figure with a panel for each chart, and its title in it.

    `room` is the width of a panel in inches; a picture that needs more takes more.
    `figure.tips` holds the words for each value, by the name of what draws it.
    """
    from matplotlib.figure import Figure

    columns = 1 if len(charts) == 1 else 2
    lines = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(_size(chart, room)[1] for chart in line) for line in lines]
    width = max(_size(chart, room)[0] for chart in charts)
    figure: Any = Figure(figsize=(columns * width, sum(heights)), layout="constrained")
    figure.tips = {}
    panels = [figure]
    if len(charts) > 1:
        ratios = {"height_ratios": heights, "squeeze": False}
        panels = figure.subfigures(len(lines), columns, **ratios).reshape(-1)
    for panel, chart in zip(panels, charts, strict=False):
        drawers: dict[type, Any] = {XYChart: _plane, BarChart: _bars, GridChart: grids.draw}
        drawers[type(chart)](panel, chart, figure.tips, room)
        if titled:
            write = panel.suptitle if isinstance(chart, GridChart) else panel.axes[0].set_title
            write(chart.title)
    labelled = [chart for chart in charts if isinstance(chart, XYChart) and chart.labelled]
    if labelled:
        figure.draw_without_rendering()  # places the axes
        for panel, chart in zip(panels, charts, strict=False):
            if chart in labelled and isinstance(chart, XYChart):
                _write_labels(panel.axes[0], chart)
    return figure


@contextmanager
def _settings(salt: str) -> Iterator[None]:
    """Keep text as text, to be searched and edited; and let equal charts give equal files."""
    with needs_extra("report", "drawing a figure"):
        import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": salt}):
        yield


def _size(chart: Chart, room: float) -> tuple[float, float]:
    """Return width and height of a chart in inches."""
    match chart:
        case XYChart():
            return room, (4.2 if room >= _WIDE else 3.6) + 0.1 * len(chart.series)
        case BarChart():
            bars = 1 if chart.stacked else len(chart.series)
            legend = 0.18 * -(-len(chart.series) // _legend_columns(room))
            return room, 0.9 + legend + 0.15 * len(chart.categories) * (bars + 0.6)
        case GridChart():
            return grids.size(chart, room)


def _legend_columns(room: float) -> int:
    return 3 if room >= _WIDE else 2


def _plane(panel: Any, chart: XYChart, tips: dict[str, list[str]], room: float) -> None:
    axes = panel.subplots()
    met: Counter[int] = Counter()
    for index, series in enumerate(chart.series):
        marker = _MARKERS[(max(series.hue, 0) + met[series.hue]) % len(_MARKERS)]
        met[series.hue] += 1
        axes.plot(
            [point.x for point in series.points],
            [point.y for point in series.points],
            linestyle=_DASHES[max(series.hue, 0) % len(_DASHES)] if series.dashed else "-",
            linewidth=6 if series.hue < 0 else 1.3,
            alpha=0.3 if series.hue < 0 else 1,
            marker=marker if series.marked else "",
            markersize=5,
            markerfacecolor="none" if series.origin == "published" else None,
            color=colour_of(series.hue),
            label=series.name,
            gid=f"{chart.id}-{index}",
        )
        tips[f"{chart.id}-{index}"] = [series.name]
        if series.marked:
            tips[f"{chart.id}-{index}"] = [_tell(chart, series.name, p) for p in series.points]
            for point in series.points:
                if point.low is not None and point.high is not None:
                    reach = (point.x, point.low, point.high)
                    axes.vlines(*reach, colors=colour_of(series.hue), alpha=0.6)
    if chart.log:
        axes.set(xscale="log", yscale="log")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    if chart.whole_x:
        axes.locator_params(axis="x", integer=True)
    if chart.labelled:
        axes.margins(x=0.1)  # room for the labels of the outermost points
        axes.set_xlim(left=max(0.0, axes.get_xlim()[0]))
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
    handles = _legend(axes, chart)
    style = {"handles": handles, "fontsize": "small", "framealpha": 0}
    # inside where there are few, below where many would hide the chart
    if len(handles) > 3:
        columns = 2 if max(len(line.get_label()) for line in handles) < 5.8 * room else 1
        panel.legend(loc="outside lower center", ncols=columns, **style)
    elif handles:
        axes.legend(**style)


def _legend(axes: Any, chart: XYChart) -> list[Any]:
    """Return a line for each series of ours; published ones share one, as labels name them."""
    from matplotlib.lines import Line2D

    lines = list(zip(axes.lines, chart.series, strict=True))
    published = [line for line, series in lines if series.origin == "published"]
    if not chart.labelled or len(published) < 2:
        return [line for line, _ in lines]
    shared = Line2D([], [], color="#666666", marker="o", markerfacecolor="none", linestyle="--")
    shared.set_label("published by the paper")
    return [*(line for line, series in lines if series.origin != "published"), shared]


def _tell(chart: XYChart, series: str, point: Any) -> str:
    interval = "" if point.low is None else f" ({_shown(point.low)} to {_shown(point.high)})"
    distinct = point.label and point.label != series.split(",")[0]
    lines = [
        f"{point.label} · {series}" if distinct else series,
        f"{chart.y_label}: {_shown(point.y)}{interval}",
        f"{chart.x_label}: {_shown(point.x)}",
        *(f"{name}: {value}" for name, value in point.facts.items() if value),
    ]
    return "\n".join(lines)


def _write_labels(axes: Any, chart: XYChart) -> None:
    """Write each label where it hides nothing, or not at all."""
    from matplotlib.transforms import Bbox

    points = [p for series in chart.series if series.hue >= 0 for p in series.points]
    middles = axes.transData.transform([(point.x, point.y) for point in points])
    taken = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in middles]
    for point in points:
        for offset, across, along in _SIDES:
            text = axes.annotate(
                point.label,
                (point.x, point.y),
                xytext=offset,
                textcoords="offset points",
                ha=across,
                va=along,
                fontsize=7,
            )
            text.set_in_layout(False)
            box = text.get_window_extent()
            inside = (axes.bbox.min <= box.min).all() and (box.max <= axes.bbox.max).all()
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _bars(panel: Any, chart: BarChart, tips: dict[str, list[str]], room: float) -> None:
    axes = panel.subplots()
    lines = 1 if chart.stacked else len(chart.series)
    step = lines + 0.6
    before = [0.0] * len(chart.categories)
    for offset, series in enumerate(chart.series):
        known = [(index, value) for index, value in enumerate(series.values) if value is not None]
        bars = axes.barh(
            [step * index + (0 if chart.stacked else offset) for index, _ in known],
            [value for _, value in known],
            left=[before[index] for index, _ in known] if chart.stacked else None,
            height=0.85,
            color="none" if series.origin == "published" else colour_of(series.hue),
            edgecolor="white" if chart.stacked else colour_of(series.hue),
            hatch=_HATCHES[max(series.hue, 0) % len(_HATCHES)] if chart.stacked else "",
            linestyle="--" if series.origin == "published" else "-",
            label=series.name,
            xerr=_reach(series.values, series.intervals),
            capsize=3,
        )
        for bar, (index, value) in zip(bars, known, strict=True):
            bar.set_gid(f"{chart.id}-{offset}-{index}")
            words = f"{series.name}: {_shown(value)} {chart.value_label}"
            tips[bar.get_gid()] = [f"{chart.categories[index]}\n{words}"]
            before[index] += value
        if not chart.stacked:
            axes.bar_label(bars, [_shown(value) for _, value in known], fontsize=7, padding=2)
    centre = 0 if chart.stacked else (lines - 1) / 2
    middles = [step * index + centre for index in range(len(chart.categories))]
    axes.set_yticks(middles, chart.categories)
    axes.margins(x=0.1, y=0.02)
    axes.invert_yaxis()
    axes.set_xlabel(chart.value_label)
    if any(series.intervals for series in chart.series):  # differences are small beside zero
        lows = [low for series in chart.series for low, _ in series.intervals]
        axes.set_xlim(left=max(0.0, min(lows) - 5))
    axes.grid(axis="x", alpha=0.3)
    # beside the bars there may be no room
    if len(chart.series) > 1:
        style = {"ncols": _legend_columns(room), "fontsize": "small", "framealpha": 0}
        panel.legend(loc="outside lower center", **style)


def _reach(values: Sequence[float | None], intervals: Sequence[tuple[float, float]]) -> Any:
    """Return how far intervals reach below and above values; by rounding, none may."""
    if not intervals:
        return None
    pairs = list(zip((value or 0.0 for value in values), intervals, strict=True))
    return [
        [max(0.0, value - low) for value, (low, _) in pairs],
        [max(0.0, high - value) for value, (_, high) in pairs],
    ]


def _shown(value: float) -> str:
    """Return a number as people read it.

    >>> _shown(1234.5), _shown(0.12345)
    ('1,234', '0.1235')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

"""Draws charts with matplotlib: as files, and as SVG for the page."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mpcvit.errors import needs_extra
from mpcvit.report.charts.chart import BarChart, Chart, GridChart, Panel, XYChart
from mpcvit.storage import replacing

FORMATS = ("png", "svg")
_ENTRY = 1.8  # inches of a legend's entry
# Okabe and Ito's colours, which most kinds of sight tell apart.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7"),
    *("#E69F00", "#56B4E9", "#882255", "#666666"),
)
# What tells series apart without colour: markers, dashes and hatches.
_MARKERS = "osD^v"
_DASHES = ("--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)), (0, (8, 3)))
_HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++", "oo")
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Offsets in points and alignments of a label: right, left, above, below.
_SIDES = (
    ((5, 0), "left", "center"),
    ((-5, 0), "right", "center"),
    ((0, 6), "center", "bottom"),
    ((0, -6), "center", "top"),
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
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Write each chart as one file per format, and return the files."""
    written = []
    for done, chart in enumerate(charts):
        progress("drawing", done, len(charts))
        for form in formats:
            written.append(folder / f"{chart.id}.{form}")
            write_figure(written[-1], [chart], dpi=200)
    return written


def to_svg(chart: Chart) -> str:
    """Return a chart as an SVG element, in which every value has a tooltip."""
    content = io.StringIO()
    with _settings(chart.id):
        figure = draw([chart], titled=False)
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
    # its own size, a little larger: a small drawing is not blown up to the page's width
    room = f"{1.4 * float(root.attrib['width'].removesuffix('pt')):.0f}pt"
    root.set("style", f"max-width: min({room}, 52rem); min-width: min({room}, 34rem)")
    root.set("role", "img")
    root.set("aria-label", chart.title)
    ElementTree.register_namespace("", _SVG)
    text = ElementTree.tostring(root, encoding="unicode")
    # ink follows the page, which may be dark
    return text.replace("#000000", "currentColor")


def draw(charts: Sequence[Chart], *, titled: bool = True) -> Any:
    """Return a matplotlib figure with a panel for each chart, and its title in it.

    `figure.tips` holds the words for each value, by the name of what draws it.
    """
    from matplotlib.figure import Figure

    columns = 1 if len(charts) == 1 else 2
    lines = [charts[start : start + columns] for start in range(0, len(charts), columns)]
    heights = [max(_height(chart) for chart in line) for line in lines]
    width = max(_width(chart) for chart in charts)
    figure: Any = Figure(figsize=(columns * width, sum(heights)), layout="constrained")
    figure.tips = {}
    panels = [figure]
    if len(charts) > 1:
        ratios = {"height_ratios": heights, "squeeze": False}
        panels = figure.subfigures(len(lines), columns, **ratios).reshape(-1)
    for panel, chart in zip(panels, charts, strict=False):
        drawers: dict[type, Any] = {XYChart: _plane, BarChart: _bars, GridChart: _grids}
        drawers[type(chart)](panel, chart, figure.tips)
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


def _height(chart: Chart) -> float:
    match chart:
        case XYChart():
            return 4.2 + 0.1 * len(chart.series)
        case BarChart():
            bars = 1 if chart.stacked else len(chart.series)
            return 1.4 + 0.15 * len(chart.categories) * (bars + 0.6)
        case GridChart():
            lines = -(-len(chart.panels) // _columns(chart))
            legend = 0.2 * -(-len(chart.kinds) // max(1, int(_width(chart) / _ENTRY)))
            tallest = max(len(panel.cells) for panel in chart.panels)
            return lines * (0.3 * tallest + 1.0) + 0.4 + legend


def _width(chart: Chart) -> float:
    if not isinstance(chart, GridChart):
        return 7.0
    widest = max(len(panel.columns) for panel in chart.panels)
    return max(4.0, _columns(chart) * (0.34 * min(widest, 16) + 1.0))


def _columns(chart: GridChart) -> int:
    return min(3, len(chart.panels))


def _plane(panel: Any, chart: XYChart, tips: dict[str, list[str]]) -> None:
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
            color=_colour(series.hue),
            label=series.name,
            gid=f"{chart.id}-{index}",
        )
        tips[f"{chart.id}-{index}"] = [series.name]
        if series.marked:
            tips[f"{chart.id}-{index}"] = [_tell(chart, series.name, p) for p in series.points]
            for point in series.points:
                if point.low is not None and point.high is not None:
                    reach = (point.x, point.low, point.high)
                    axes.vlines(*reach, colors=_colour(series.hue), alpha=0.6)
    if chart.log:
        axes.set(xscale="log", yscale="log")
    if chart.y_range is not None:
        axes.set_ylim(*chart.y_range)
    if chart.whole_x:
        axes.locator_params(axis="x", integer=True)
    if chart.labelled:
        axes.margins(x=0.1)  # room for the labels of the outermost points
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
    handles = _legend(axes, chart)
    style = {"handles": handles, "fontsize": "small", "framealpha": 0}
    # inside where there are few, below where many would hide the chart
    if len(handles) > 3:
        columns = 2 if max(len(line.get_label()) for line in handles) < 40 else 1
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
            inside = axes.bbox.x0 <= box.x0 and box.x1 <= axes.bbox.x1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            text.remove()


def _bars(panel: Any, chart: BarChart, tips: dict[str, list[str]]) -> None:
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
            color="none" if series.origin == "published" else _colour(series.hue),
            edgecolor="white" if chart.stacked else _colour(series.hue),
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
            axes.bar_label(bars, [_shown(value) for _, value in known], fontsize=6, padding=2)
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
        panel.legend(loc="outside lower center", ncols=3, fontsize="small", framealpha=0)


def _reach(values: Sequence[float | None], intervals: Sequence[tuple[float, float]]) -> Any:
    """Return how far intervals reach below and above values; by rounding, none may."""
    if not intervals:
        return None
    pairs = list(zip((value or 0.0 for value in values), intervals, strict=True))
    return [
        [max(0.0, value - low) for value, (low, _) in pairs],
        [max(0.0, high - value) for value, (_, high) in pairs],
    ]


def _grids(panel: Any, chart: GridChart, tips: dict[str, list[str]]) -> None:
    columns = _columns(chart)
    lines = -(-len(chart.panels) // columns)
    sheets = panel.subplots(lines, columns, squeeze=False).reshape(-1)
    for index, (axes, picture) in enumerate(zip(sheets, chart.panels, strict=False)):
        _draw_picture(axes, picture, chart, tips, f"{chart.id}-{index}")
    for axes in sheets[len(chart.panels) :]:
        axes.set_visible(False)
    if chart.kinds:
        from matplotlib.patches import Patch

        patches = [Patch(color=_colour(hue), label=kind) for kind, hue in chart.kinds.items()]
        columns = min(4, max(1, int(_width(chart) / _ENTRY)))
        style = {"ncols": columns, "fontsize": "small", "framealpha": 0}
        panel.legend(handles=patches, loc="outside lower center", **style)


def _draw_picture(
    axes: Any, panel: Panel, chart: GridChart, tips: dict[str, list[str]], name: str
) -> None:
    from matplotlib.patches import Rectangle

    few = len(panel.columns) <= 16  # else there is no room for letters
    for layer, cells in enumerate(panel.cells):
        for column, cell in enumerate(cells):
            shade = 1.0 if cell.share is None else 0.1 + 0.9 * cell.share
            colour = _colour(chart.kinds.get(cell.kind, 0))
            square = Rectangle((column, layer), 0.94, 0.94, facecolor=colour, alpha=shade)
            square.set_gid(f"{name}-{layer}-{column}")
            words = f"layer {layer}, {panel.columns[column]}: {cell.words}"
            tips[f"{name}-{layer}-{column}"] = [f"{panel.name}\n{words}"]
            axes.add_patch(square)
            if few:
                ink = "white" if shade > 0.55 else "black"
                style = {"ha": "center", "va": "center", "color": ink, "fontsize": 7}
                axes.text(column + 0.47, layer + 0.5, cell.text, **style)
    names = [text.removeprefix("head ").replace(" ", "\n") for text in panel.columns]
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


def _shown(value: float) -> str:
    """Return a number as people read it.

    >>> _shown(1234.5), _shown(0.12345)
    ('1,234', '0.1235')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _colour(hue: int) -> str:
    return "#999999" if hue < 0 else _COLOURS[hue % len(_COLOURS)]

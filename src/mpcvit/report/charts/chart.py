"""Charts as plain data; `figures` draws them, for the page and for files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Row: TypeAlias = dict[str, Any]
Origin = Literal["modelled", "measured", "published", "counted", "trained"]
"""Where numbers come from; published ones are drawn hollow and dashed."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value with its interval; the page shows its `facts` to a reader who points at it."""

    x: float
    y: float
    label: str = ""
    low: float | None = None
    high: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Series:
    """A named sequence of points; series of one `hue` share a colour."""

    name: str
    points: tuple[Point, ...]
    origin: Origin
    hue: int = 0
    marked: bool = True  # a marker at each point
    dashed: bool = False


def line(
    name: str,
    values: Iterable[tuple[float, float]],
    origin: Origin,
    hue: int,
    *,
    label: str = "",
    **style: bool,
) -> Series:
    """Return a series of plain points, which have the same label."""
    points = tuple(Point(x=x, y=y, label=label) for x, y in values)
    return Series(name=name, points=points, origin=origin, hue=hue, **style)


@dataclass(frozen=True, kw_only=True)
class _Titled:
    id: str
    title: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class XYChart(_Titled):
    """A chart of points in a plane, joined by lines."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log: bool = False  # both axes
    y_range: tuple[float, float | None] | None = None
    whole_x: bool = False  # ticks at whole numbers alone
    labelled: bool = False  # write each point's label beside it

    def rows(self) -> list[Row]:
        """Return a row per point, for the table below the chart and its CSV."""
        return [
            {
                "series": series.name,
                "label": point.label,
                self.x_label: point.x,
                self.y_label: point.y,
                "low": _or_empty(point.low),
                "high": _or_empty(point.high),
                "origin": series.origin,
                **point.facts,
            }
            for series in self.series
            for point in series.points
        ]


@dataclass(frozen=True, kw_only=True)
class BarSeries:
    """One value per category, or None where there is none; and intervals, if known."""

    name: str
    values: tuple[float | None, ...]
    origin: Origin
    hue: int = 0
    intervals: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class BarChart(_Titled):
    """A chart of bars for each category: side by side, or end to end."""

    value_label: str
    categories: tuple[str, ...]
    series: tuple[BarSeries, ...]
    stacked: bool = False

    def rows(self) -> list[Row]:
        """Return a row per bar."""
        return [
            {
                "category": category,
                "series": series.name,
                self.value_label: value,
                "origin": series.origin,
            }
            for index, category in enumerate(self.categories)
            for series in self.series
            if (value := series.values[index]) is not None
        ]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A square: its letter, its words, and the kind that colours it or the share that shades it."""

    text: str
    words: str
    kind: str = ""
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A small picture: a row of cells per layer."""

    name: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class GridChart(_Titled):
    """A chart of small pictures of layers by heads."""

    panels: tuple[Panel, ...]
    kinds: Mapping[str, int] = field(default_factory=dict)  # and their hues

    def rows(self) -> list[Row]:
        """Return a row per cell."""
        return [
            {
                "network": panel.name,
                "layer": layer,
                "place": column,
                "choice": cell.kind or cell.text,
                "words": cell.words,
            }
            for panel in self.panels
            for layer, cells in enumerate(panel.cells)
            for column, cell in zip(panel.columns, cells, strict=False)  # some layers have fewer
        ]


Chart: TypeAlias = XYChart | BarChart | GridChart


def stacked_chart(
    id: str,
    title: str,
    caption: str,
    label: str,
    bars: Mapping[str, Mapping[str, float]],
    origin: Origin,
    colours: Mapping[str, int] | None = None,
) -> list[BarChart]:
    """Return a chart of bars that are made of named parts, the longest first, if there is one.

    `colours` has the parts with their hues; by default all of them, in order of appearance.
    """
    longest = dict(sorted(bars.items(), key=lambda bar: -sum(bar[1].values())))
    if not any(map(any, (bar.values() for bar in longest.values()))):
        return []
    parts = hues([name for bar in longest.values() for name in bar]) if colours is None else colours
    series = (
        BarSeries(
            name=name,
            values=tuple(bar.get(name) for bar in longest.values()),
            origin=origin,
            hue=hue,
        )
        for name, hue in parts.items()
        if any(bar.get(name) for bar in longest.values())
    )
    return [
        BarChart(
            id=id,
            title=title,
            caption=caption,
            value_label=label,
            categories=tuple(longest),
            series=tuple(series),
            stacked=True,
        )
    ]


def hues(names: Sequence[str]) -> dict[str, int]:
    """Return a colour for each distinct name, in order of appearance."""
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def number(value: object) -> float | None:
    """Return a table's number, or None if it holds none.

    >>> number("1.5"), number(""), number("fail"), number(0.0)
    (1.5, None, None, 0.0)
    """
    try:
        return float(str(value))
    except ValueError:
        return None


def slug(text: str) -> str:
    """Return a name for an address or a file.

    >>> slug("Block by heads, SEMI2K")
    'block-by-heads-semi2k'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value

"""Charts as plain data: the page draws them in the browser, `figures` on paper."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeAlias

Row: TypeAlias = dict[str, Any]
Origin = Literal["modelled", "measured", "published", "counted", "trained"]
"""Where numbers come from; the published ones are drawn hollow and dashed."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A value at a place; `facts` are told where someone points at it."""

    x: float
    y: float
    label: str = ""
    low: float | None = None
    high: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name; series of one `hue` share a colour."""

    name: str
    points: tuple[Point, ...]
    origin: Origin
    hue: int = 0
    joined: bool = True
    marked: bool = True  # a marker at each point
    mark: int = 0  # which; a chart gives series of one hue different ones
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class XYChart:
    """Points in a plane, joined by lines or not."""

    id: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log: bool = False  # both axes
    from_zero: bool = False  # the y axis
    whole_x: bool = False  # ticks at whole numbers alone
    labelled: bool = False  # write each point's label beside it
    type: str = "xy"

    def __post_init__(self) -> None:
        met: Counter[int] = Counter()
        series = []
        for one in self.series:
            series.append(replace(one, mark=max(one.hue, 0) + met[one.hue]))
            met[one.hue] += 1
        object.__setattr__(self, "series", tuple(series))

    def rows(self) -> list[Row]:
        """A row per point, for the table below the chart and its CSV."""
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
    """One value per category, or None where there is none."""

    name: str
    values: tuple[float | None, ...]
    origin: Origin
    hue: int = 0


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Bars of several series for each category, side by side or end to end."""

    id: str
    title: str
    caption: str
    value_label: str
    categories: tuple[str, ...]
    series: tuple[BarSeries, ...]
    stacked: bool = False
    type: str = "bars"

    def rows(self) -> list[Row]:
        return [
            {
                "category": category,
                "series": series.name,
                self.value_label: _or_empty(value),
                "origin": series.origin,
            }
            for place, category in enumerate(self.categories)
            for series in self.series
            for value in (series.values[place],)
            if value is not None
        ]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A square: its letter, the kind that colours it or the share that shades it, and its words."""

    text: str
    words: str
    kind: str = ""
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Rows of cells, a row per layer."""

    name: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class GridChart:
    """Small pictures of layers by heads."""

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    kinds: Mapping[str, int] = field(default_factory=dict)  # and their hues
    type: str = "grid"

    def rows(self) -> list[Row]:
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
            for column, cell in zip(panel.columns, cells, strict=True)
        ]


Chart: TypeAlias = XYChart | BarChart | GridChart


def to_plain(chart: Chart) -> dict[str, Any]:
    return asdict(chart)


def hues(names: Sequence[str]) -> dict[str, int]:
    """A colour for each distinct name, in order of appearance."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def slug(text: str) -> str:
    """A name that can stand in an address and in a file's name.

    >>> slug("Block by heads, SEMI2K")
    'block-by-heads-semi2k'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value

"""Seconds of whole networks and of single attention layers, beside the paper's."""

from mpcvit.report.charts.chart import BarChart, BarSeries, Origin, number, slug
from mpcvit.report.collect import Collected, Named, Table, TableKind

PUBLISHED = "published by the paper, on other hardware"
_COLUMNS: tuple[tuple[str, str, Origin], ...] = (
    ("modelled_s", "modelled", "modelled"),
    ("measured_s", "measured through an emulated network", "measured"),
    ("paper_s", PUBLISHED, "published"),
)


def charts(collected: Collected) -> list[BarChart]:
    return [
        *(
            _chart(table, "network", "Whole networks", "as they are written, random weights")
            for table in collected.tables_of(TableKind.NETWORKS)
        ),
        *(
            _chart(table, "attention", "One attention layer of each kind", "with its two linears")
            for table in collected.tables_of(TableKind.ATTENTION)
        ),
    ]


def _chart(table: Named[Table], column: str, title: str, about: str) -> BarChart:
    rows = sorted(table.value.rows, key=lambda row: -(number(row["modelled_s"]) or 0.0))
    series = tuple(
        BarSeries(
            name=name,
            values=tuple(number(row.get(seconds)) for row in rows),
            origin=origin,
            hue=hue,
        )
        for hue, (seconds, name, origin) in enumerate(_COLUMNS)
        if any(number(row.get(seconds)) is not None for row in rows)
    )
    shape, protocol = rows[0].get("shape", ""), rows[0].get("protocol", "")
    return BarChart(
        id=slug(f"seconds {table.name}"),
        title=f"{title}, {protocol}".rstrip(", "),
        caption=f"Seconds of one private inference, {about}; {shape}.",
        value_label="seconds",
        categories=tuple(row[column] for row in rows),
        series=series,
    )

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
    names = tuple(dict.fromkeys(row[column] for row in rows))
    profiles = dict.fromkeys(row.get("profile", "") for row in table.value.rows)
    by_place = {(row[column], row.get("profile", "")): row for row in rows}
    series = []
    for seconds, label, origin in _COLUMNS:
        own = profiles if origin == "measured" else list(profiles)[:1]  # else they are the same
        for profile in own:
            found = (by_place.get((name, profile), {}).get(seconds) for name in names)
            values = tuple(number(value) for value in found)
            if any(value is not None for value in values):
                among = f", {profile}" if len(profiles) > 1 and len(own) > 1 else ""
                name, hue = f"{label}{among}", len(series)
                series.append(BarSeries(name=name, values=values, origin=origin, hue=hue))
    shape, protocol = rows[0].get("shape", ""), rows[0].get("protocol", "")
    return BarChart(
        id=slug(f"seconds {table.name}"),
        title=f"{title}, {protocol}".rstrip(", "),
        caption=f"Seconds of one private inference, {about}; {shape}.",
        value_label="seconds",
        categories=names,
        series=tuple(series),
    )

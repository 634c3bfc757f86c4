"""Error of private attention weights against the variance of their input."""

from collections.abc import Mapping, Sequence

from mpcvit.report.charts.chart import XYChart, hues, line, slug
from mpcvit.report.collect import Collected, TableKind


def charts(collected: Collected) -> list[XYChart]:
    found = []
    for table in collected.tables_of(TableKind.PRECISION):
        rows = table.value.rows
        kinds = hues([row["attention"] for row in rows])
        found.append(
            XYChart(
                id=slug(f"precision {table.name}"),
                title="Error of private attention weights",
                caption="Relative error of the private result against float64, by the variance of "
                "the scores.",
                x_label="variance of the input",
                y_label="relative error",
                series=tuple(
                    line(kind, _errors(rows, kind), "measured", hue, label=kind)
                    for kind, hue in kinds.items()
                ),
                log=True,
            )
        )
    return found


def _errors(rows: Sequence[Mapping[str, str]], kind: str) -> list[tuple[float, float]]:
    own = [row for row in rows if row["attention"] == kind]
    return [(float(row["variance"]), float(row["relative_error"])) for row in own]

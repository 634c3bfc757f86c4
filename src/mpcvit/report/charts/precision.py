"""Error of private attention weights against the variance of their input."""

from mpcvit.report.charts.chart import Point, Series, XYChart, hues, slug
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
                    Series(
                        name=kind,
                        points=tuple(
                            Point(
                                x=float(row["variance"]),
                                y=float(row["relative_error"]),
                                label=kind,
                            )
                            for row in rows
                            if row["attention"] == kind
                        ),
                        origin="measured",
                        hue=hue,
                    )
                    for kind, hue in kinds.items()
                ),
                log=True,
            )
        )
    return found

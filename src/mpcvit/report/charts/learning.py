"""Learning curves of trainings and searches, from their logs."""

from mpcvit.report.charts.chart import Point, Series, XYChart
from mpcvit.report.findings import Findings


def charts(findings: Findings) -> list[XYChart]:
    found = []
    for metric, title, label, scale in (
        ("top1", "Accuracy over epochs", "top-1 accuracy (%)", 100.0),
        ("loss", "Loss over epochs", "loss", 1.0),
    ):
        series = [
            Series(
                name=f"{log.name}, {split}",
                points=points,
                origin="trained",
                hue=hue,
                marked=split == "test",
                dashed=split == "train",
            )
            for hue, log in enumerate(findings.logs)
            for split in ("test", "train")
            if (points := _points(log.held, f"{split}_{metric}", scale, log.name))
        ]
        if series:
            found.append(
                XYChart(
                    id=f"learning-{metric}",
                    title=title,
                    caption="Solid with markers: on the test split. Dashed: on augmented training "
                    "images, while learning; a retraining's loss has its teacher's terms in it.",
                    x_label="epoch",
                    y_label=label,
                    series=tuple(series),
                    whole_x=True,
                )
            )
    return found


def _points(rows: list[dict], column: str, scale: float, label: str) -> tuple[Point, ...]:
    return tuple(
        Point(x=row["epoch"], y=scale * row[column], label=label) for row in rows if column in row
    )

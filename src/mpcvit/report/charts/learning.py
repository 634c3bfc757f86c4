"""Learning curves of trainings and searches, from their logs and from experiments' tables."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mpcvit.report.charts.chart import XYChart, line, number, slug
from mpcvit.report.collect import Collected, TableKind

Epochs = Sequence[Mapping[str, Any]]

_METRICS = (
    ("top1", "Accuracy over epochs", "top-1 accuracy (%)", 100.0),
    ("loss", "Loss over epochs", "loss", 1.0),
)
_CAPTION = (
    "Solid with markers: on test or validation images. Dashed: on augmented training images, while "
    "learning; a retraining's loss has its teacher's terms in it."
)


def charts(collected: Collected) -> list[XYChart]:
    """Return the curves of all logs, and those of each table of epochs."""
    tables = collected.tables_of(TableKind.EPOCHS)
    return [
        *learning_charts({log.name: log.value for log in collected.logs}),
        *(
            chart
            for table in tables
            for chart in learning_charts(_means(table.value.rows), table.name)
        ),
    ]


def learning_charts(curves: Mapping[str, Epochs], table: str = "") -> list[XYChart]:
    """Return a chart of accuracies and one of losses, with a curve per name and split."""
    made = []
    for metric, title, label, scale in _METRICS:
        series = tuple(
            line(
                f"{name}, {split}" if name else split,
                values,
                "trained",
                hue,
                label=name,
                marked=split != "train",
                dashed=split == "train",
            )
            for hue, (name, epochs) in enumerate(curves.items())
            for split in ("test", "validation", "train")
            if (values := _values(epochs, f"{split}_{metric}", scale))
        )
        chart = XYChart(
            id=slug(f"learning {metric} {table}"),
            title=f"{title}, {table}" if table else title,
            caption=f"{_CAPTION} Means over seeds." if table else _CAPTION,
            x_label="epoch",
            y_label=label,
            series=series,
            whole_x=True,
        )
        made += [chart] if series else []
    return made


def _values(epochs: Epochs, column: str, scale: float) -> list[tuple[float, float]]:
    return [(epoch["epoch"], scale * epoch[column]) for epoch in epochs if column in epoch]


def _means(rows: Sequence[Mapping[str, str]]) -> dict[str, Epochs]:
    """Return each network's epochs, as means over its seeds."""
    grouped: dict[str, dict[int, list[Mapping[str, str]]]] = {}
    for row in rows:
        grouped.setdefault(row["network"], {}).setdefault(int(row["epoch"]), []).append(row)
    return {
        network: [{"epoch": epoch, **_mean(seeds)} for epoch, seeds in sorted(epochs.items())]
        for network, epochs in grouped.items()
    }


def _mean(seeds: Sequence[Mapping[str, str]]) -> dict[str, float]:
    columns = (f"{split}_{metric}" for metric, *_ in _METRICS for split in ("test", "train"))
    by_column = {column: [number(row.get(column)) for row in seeds] for column in columns}
    return {
        column: fmean(known)
        for column, values in by_column.items()
        if (known := [value for value in values if value is not None])
    }

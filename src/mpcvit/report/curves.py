"""Learning curves of a run, drawn from its log."""

from pathlib import Path

from mpcvit.artifacts.provenance import CURVES_FILE
from mpcvit.storage import replacing
from mpcvit.train.log import read_log
from mpcvit.train.loop import EpochEvent, StepEvent


def draw_curves(folder: Path) -> None:
    """Loss and accuracy over epochs, training beside test."""
    from matplotlib.figure import Figure

    rows = read_log(folder)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    loss_axes, top1_axes = figure.subplots(1, 2)
    for axes, metric, scale, label in (
        (loss_axes, "loss", 1, "loss"),
        (top1_axes, "top1", 100, "top-1 accuracy (%)"),
    ):
        for split, style in (("train", "--"), ("test", "-")):
            points = [
                (row["epoch"], scale * row[f"{split}_{metric}"])
                for row in rows
                if f"{split}_{metric}" in row
            ]
            axes.plot(*zip(*points, strict=True), style, label=split)
        axes.set(xlabel="epoch", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend()
    with replacing(folder / CURVES_FILE) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


class CurveWriter:
    """Draws the curves anew after every evaluated epoch."""

    def on_step(self, event: StepEvent) -> None:
        pass

    def on_epoch(self, event: EpochEvent) -> None:
        if "test_top1" in event.row:
            draw_curves(event.folder)

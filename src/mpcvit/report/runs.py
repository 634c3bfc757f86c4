"""Draws a run's figures from its log, while it goes on."""

from pathlib import Path

from mpcvit.artifacts.provenance import CURVES_FILE, SEARCH_FIGURE_FILE, judged_by
from mpcvit.report.charts.heads import search_charts
from mpcvit.report.charts.learning import learning_charts
from mpcvit.report.figures import write_figure
from mpcvit.train.log import read_log
from mpcvit.train.loop import EpochEvent, StepEvent


def draw_run(folder: Path) -> None:
    """Draw loss and accuracy over epochs, and every choice if the run is a search."""
    rows = read_log(folder)
    write_figure(folder / CURVES_FILE, learning_charts({"": rows}))
    if charts := search_charts(rows):
        write_figure(folder / SEARCH_FIGURE_FILE, charts)


class FigureWriter:
    """An observer that draws a run anew after every evaluated epoch."""

    def on_step(self, event: StepEvent) -> None:
        pass

    def on_epoch(self, event: EpochEvent) -> None:
        if f"{judged_by(event.row)}_top1" in event.row:
            draw_run(event.folder)

"""What a search found, drawn from its log: alpha and beta over layers, heads and epochs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.artifacts.provenance import SEARCH_FIGURE_FILE
from mpcvit.storage import replacing
from mpcvit.train.log import read_log
from mpcvit.train.loop import EpochEvent, StepEvent


def draw_search(folder: Path) -> None:
    """A heat map, the mean per layer, and its movement; a row each for alpha and beta."""
    from matplotlib.figure import Figure

    rows = read_log(folder)
    names = [name for name in ("alpha", "beta") if name in rows[-1]]
    figure = Figure(figsize=(12, 3.6 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 3, squeeze=False)
    for name, (heat, layers, movement) in zip(names, panels, strict=True):
        history = [(row["epoch"], _by_layer(row[name])) for row in rows if name in row]
        latest = history[-1][1]
        _heat_map(figure, heat, name, latest)
        _means(layers, name, {"": [float(np.mean(values)) for values in latest]})
        epochs = [epoch for epoch, _ in history]
        for layer in range(len(latest)):
            values = [float(np.mean(found[layer])) for _, found in history]
            movement.plot(epochs, values, marker=".", label=f"layer {layer}")
        movement.set(xlabel="epoch", ylabel=f"mean {name}", ylim=(-0.02, 1.02))
        movement.grid(alpha=0.3)
        movement.legend(fontsize="small", ncols=2)
    with replacing(folder / SEARCH_FIGURE_FILE) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def draw_distributions(path: Path, series: Mapping[str, Sequence[float]]) -> None:
    """The mean alpha of each layer, a line per search: the paper's distribution figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.6), layout="constrained")
    _means(figure.subplots(), "alpha", series)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


class ImportanceWriter:
    """Draws a search anew after every evaluated epoch."""

    def on_step(self, event: StepEvent) -> None:
        pass

    def on_epoch(self, event: EpochEvent) -> None:
        if "alpha" in event.row:
            draw_search(event.folder)


def _by_layer(values: Sequence[Any]) -> list[np.ndarray]:
    """One row of numbers per layer: a head's rows are averaged, tokens stay apart."""
    arrays = [np.asarray(layer) for layer in values]
    return [array.mean(axis=-1) if array.ndim == 2 else array for array in arrays]


def _heat_map(figure: Any, axes: Any, name: str, values: Sequence[np.ndarray]) -> None:
    image = axes.imshow(np.stack(values), vmin=0, vmax=1, cmap="viridis", aspect="auto")
    axes.set(xlabel="head" if name == "alpha" else "token", ylabel="layer", title=name)
    axes.set_yticks(range(len(values)))
    if len(values[0]) <= 16:
        axes.set_xticks(range(len(values[0])))
    figure.colorbar(image, ax=axes)


def _means(axes: Any, name: str, series: Mapping[str, Sequence[float]]) -> None:
    for label, values in series.items():
        axes.plot(range(len(values)), values, marker="o", label=label)
    axes.set(xlabel="layer", ylabel=f"mean {name}", ylim=(-0.02, 1.02))
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(fontsize="small")

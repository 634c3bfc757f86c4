"""Figures of what private inference costs, from the rows of `mpcvit bench`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpcvit.storage import replacing

Row = Mapping[str, Any]


def draw_seconds(path: Path, rows: Sequence[Row], label: str) -> None:
    """A bar of modelled seconds per row, beside measured ones and the paper's where known."""
    series = {
        "modelled": [row["modelled_s"] for row in rows],
        "measured through the emulated network": [row["measured_s"] or 0 for row in rows],
        "published in the paper (other hardware)": [row["paper_s"] or 0 for row in rows],
    }
    shown = {name: values for name, values in series.items() if any(values)}
    figure, axes = _figure(9, 0.3 * len(rows) * len(shown) + 1.4)
    for offset, (name, values) in enumerate(shown.items()):
        places = [len(shown) * 1.2 * row + offset for row in range(len(rows))]
        axes.barh(places, values, height=0.9, label=name)
    axes.set_yticks(
        [len(shown) * 1.2 * row + (len(shown) - 1) / 2 for row in range(len(rows))],
        [row[label] for row in rows],
    )
    axes.invert_yaxis()
    axes.set(xlabel="seconds")
    _finish(figure, axes, path)


def draw_lowering(path: Path, rows: Sequence[Row]) -> None:
    """Seconds an image of every network, plain beside lowered."""
    places = list(
        dict.fromkeys(f"{row['network']}, {row['profile']}, batch {row['batch']}" for row in rows)
    )
    figure, axes = _figure(9, 0.7 * len(places) + 1.4)
    for offset, form in enumerate(("plain", "lowered")):
        own = [row for row in rows if row["form"] == form]
        bars = axes.barh(
            [2.6 * place + offset for place in range(len(places))],
            [_seconds(row) for row in own],
            height=0.9,
            label=form,
        )
        axes.bar_label(bars, [f"{row['exchanges']:,} exchanges" for row in own], padding=3)
    axes.set_yticks([2.6 * place + 0.5 for place in range(len(places))], places)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    measured = any(row["measured_s"] for row in rows)
    axes.set(xlabel=f"seconds an image, {'measured' if measured else 'modelled'}")
    _finish(figure, axes, path)


def draw_layers(path: Path, rows: Sequence[Row]) -> None:
    """Seconds and bytes of every layer, a line per network."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, column, title in zip(
        figure.subplots(1, 2),
        ("modelled_s", "sent_mb"),
        ("modelled seconds", "MB sent"),
        strict=True,
    ):
        for network in dict.fromkeys(row["network"] for row in rows):
            own = [row for row in rows if row["network"] == network]
            axes.plot(
                [row["layer"] for row in own],
                [row[column] for row in own],
                marker="o",
                label=network,
            )
        axes.set(xlabel="layer", ylabel=title, ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    _save(figure, path)


def draw_breakdown(path: Path, rows: Sequence[Row]) -> None:
    """Stacked bars: each part's seconds, a panel per table and protocol."""
    from matplotlib.figure import Figure

    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["table"], row["protocol"]), []).append(row)
    columns = len({table for table, _ in groups})
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(3.4 * columns, 3.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).reshape(-1)
    for axes, ((table, protocol), own) in zip(panels, groups.items(), strict=False):
        values = list(dict.fromkeys(str(row["value"]) for row in own))
        floor = dict.fromkeys(values, 0.0)
        for part in dict.fromkeys(row["part"] for row in own):
            heights = {str(row["value"]): _seconds(row) for row in own if row["part"] == part}
            axes.bar(
                values,
                [heights[value] for value in values],
                bottom=[floor[value] for value in values],
                label=part,
            )
            for value in values:
                floor[value] += heights[value]
        # room above the bars for the legend
        axes.set(
            title=f"{table}, {protocol}",
            ylabel="seconds, measured" if own[0]["measured_s"] else "seconds, modelled",
            ylim=(0, 1.4 * max(floor.values())),
        )
        axes.legend(fontsize=6)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    _save(figure, path)


def _seconds(row: Row) -> float:
    """Measured ones where there are any; compute alone where nothing else is known."""
    return row["measured_s"] or row["modelled_s"] or row["compute_s"]


def draw_precision(path: Path, rows: Sequence[Row]) -> None:
    """Relative error against the input's variance."""
    figure, axes = _figure(5, 3.6)
    for name in dict.fromkeys(row["attention"] for row in rows):
        own = [row for row in rows if row["attention"] == name]
        axes.plot(
            [row["variance"] for row in own],
            [row["relative_error"] for row in own],
            marker="o",
            label=name,
        )
    axes.set(xlabel="variance of the input", ylabel="relative error", xscale="log", yscale="log")
    _finish(figure, axes, path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _finish(figure: Any, axes: Any, path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)

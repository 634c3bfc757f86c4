"""What each head and MLP became, and how much a search found that it is needed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.kinds.table import KINDS, Kind
from mpcvit.report.charts.chart import (
    Cell,
    Chart,
    GridChart,
    Panel,
    Point,
    Series,
    XYChart,
    hues,
    slug,
)
from mpcvit.report.collect import Collected, TableKind

_MIXED = "mixed over tokens"
_SHARES = (-0.02, 1.02)


def charts(collected: Collected) -> list[Chart]:
    """Return every distinct architecture once, every search, and tables of searches."""
    made: list[Chart] = []
    names: dict[str, list[str]] = {}
    architectures: dict[str, Architecture] = {}
    for network in collected.networks:
        digest = network.value.architecture.digest()
        names.setdefault(digest, []).append(network.name)
        architectures[digest] = network.value.architecture
    # those with a choice first
    order = sorted(architectures, key=lambda digest: _kinds(architectures[digest]) < 2)
    panels = [_panel(", ".join(names[digest]), architectures[digest]) for digest in order]
    if panels:
        kinds = [cell.kind for panel in panels for cells in panel.cells for cell in cells]
        made.append(
            GridChart(
                id="heads",
                title="What each head became",
                caption="A square is a head, the last of a line the layer's MLP; its letter and "
                "colour say what it computes. Networks of the same architecture share a picture.",
                panels=tuple(panels),
                kinds=hues(sorted(set(kinds), key=_order)),
            )
        )
    searches = [_alpha_panel(search.name, search.value.alpha) for search in collected.searches]
    if searches:
        made.append(
            GridChart(
                id="alpha",
                title="What the search found",
                caption="Alpha of each head after the search: how much it needs the expensive "
                "attention, from 0 (not at all) to 1. The heads with the largest keep it.",
                panels=tuple(searches),
            )
        )
    for table in collected.tables_of(TableKind.SEARCHES):
        by_search: dict[str, list[list[float]]] = {}
        for row in table.value.rows:
            layers = [float(mean) for mean in row["mean_alpha_by_layer"].split()]
            by_search.setdefault(row["search"], []).append(layers)
        means = {
            name: [fmean(layer) for layer in zip(*seeds, strict=True)]
            for name, seeds in by_search.items()
        }
        made.append(_means_chart("alpha", means, table.name))
    return made


def search_charts(log: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return alpha, and beta if searched: all values, the means of layers, and their movement."""
    made: list[Chart] = []
    for name in ("alpha", "beta"):
        epochs = [row for row in log if name in row]
        if not epochs:
            continue
        latest = epochs[-1][name]
        panel = _alpha_panel("", latest) if name == "alpha" else _beta_panel(latest)
        made.append(GridChart(id=name, title=name, panels=(panel,)))
        made.append(_means_chart(name, {"": [_mean(layer) for layer in latest]}))
        movement = tuple(
            Series(
                name=f"layer {layer}",
                points=tuple(Point(x=row["epoch"], y=_mean(row[name][layer])) for row in epochs),
                origin="trained",
                hue=layer,
            )
            for layer in range(len(latest))
        )
        made.append(
            XYChart(
                id=f"{name}-movement",
                title=f"mean {name} over epochs",
                x_label="epoch",
                y_label=f"mean {name}",
                series=movement,
                y_range=_SHARES,
                whole_x=True,
            )
        )
    return made


def _means_chart(name: str, means: Mapping[str, Sequence[float]], table: str = "") -> XYChart:
    return XYChart(
        id=slug(f"mean {name} {table}"),
        title=f"mean {name} of each layer, {table}" if table else f"mean {name} of each layer",
        caption="Means over heads and seeds.",
        x_label="layer",
        y_label=f"mean {name}",
        series=tuple(
            Series(
                name=label or "latest",
                points=tuple(Point(x=layer, y=value) for layer, value in enumerate(values)),
                origin="trained",
                hue=hue,
            )
            for hue, (label, values) in enumerate(means.items())
        ),
        y_range=_SHARES,
        whole_x=True,
    )


def _kinds(architecture: Architecture) -> int:
    return len({kind for layer in architecture.layers for kind in layer.kinds})


def _order(kind: str) -> tuple[int, int]:
    """Order attention kinds and MLP forms as they are defined, and the mixed ones last."""
    for group, known in enumerate(([*KINDS], [form.value for form in MlpForm])):
        if kind in known:
            return group, known.index(kind)
    return 2, 0


def _panel(name: str, architecture: Architecture) -> Panel:
    heads = len(architecture.layers[0].heads)
    return Panel(
        name=name,
        columns=(*(f"head {head}" for head in range(heads)), "MLP"),
        cells=tuple(_cells(layer) for layer in architecture.layers),
    )


def _cells(layer: LayerArchitecture) -> tuple[Cell, ...]:
    return tuple(_cell(choice) for choice in (*layer.heads, layer.mlp))


def _cell(choice: Kind | MlpForm | Sequence[Kind | MlpForm]) -> Cell:
    names = [choice] if isinstance(choice, Kind | MlpForm) else list(choice)
    counts = Counter(names)
    if len(counts) == 1:
        return Cell(text=names[0].symbol, words=names[0].value, kind=names[0].value)
    parts = (f"{count} of {len(names)} tokens {one.value}" for one, count in counts.most_common())
    return Cell(text="*", words=", ".join(parts), kind=_MIXED)


def _alpha_panel(name: str, alpha: Sequence[Sequence[Sequence[float]]]) -> Panel:
    columns = max(len(heads) for heads in alpha)
    return Panel(
        name=name,
        columns=("all heads",) if columns == 1 else tuple(f"head {i}" for i in range(columns)),
        cells=tuple(tuple(_share("alpha", rows) for rows in heads) for heads in alpha),
    )


def _beta_panel(beta: Sequence[Sequence[float]]) -> Panel:
    columns = max(len(tokens) for tokens in beta)
    return Panel(
        name="",
        columns=("all tokens",) if columns == 1 else tuple(str(i) for i in range(columns)),
        cells=tuple(tuple(_share("beta", [value]) for value in tokens) for tokens in beta),
    )


def _share(name: str, values: Sequence[float]) -> Cell:
    mean = fmean(values)
    words = f"{name} {mean:.3f}"
    words += "" if len(values) == 1 else f", mean of {len(values)} rows"
    return Cell(text=f"{mean:.2f}", words=words, share=mean)


def _mean(values: Any) -> float:
    """Return the mean of numbers, or of equally long lists of numbers."""
    return fmean(_mean(item) for item in values) if isinstance(values, Sequence) else float(values)

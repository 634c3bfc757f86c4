"""What each place of a network became, and how much a search found that it is needed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from statistics import fmean
from typing import Any

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.forms import LayerForm
from mpcvit.artifacts.resolve import forms_of
from mpcvit.kinds.table import KINDS, Kind
from mpcvit.report.charts.chart import (
    Cell,
    Chart,
    GridChart,
    Panel,
    XYChart,
    hues,
    line,
    slug,
)
from mpcvit.report.collect import Collected, Named, TableKind, TrainedNetwork

_MIXED = "mixed over tokens"
_SHARES = (-0.02, 1.02)
_COLUMNS = {
    "alpha": ("head {}", "all heads"),
    "beta": ("token {}", "all tokens"),
    "tokens": ("merge {}", "merge"),
}
"""How a search's numbers are called, of several in a layer and of one."""


def charts(collected: Collected) -> list[Chart]:
    """Return every distinct architecture once, every search, and tables of searches."""
    made: list[Chart] = []
    same: dict[tuple[Any, ...], list[Named[TrainedNetwork]]] = {}
    for network in collected.networks:
        forms = forms_of(network.value.model, network.value.architecture)
        same.setdefault((network.value.architecture.digest(), forms), []).append(network)
    # those with a choice first
    order = sorted(same, key=lambda one: _kinds(same[one][0].value.architecture) < 2)
    chosen = _chosen([forms for _, forms in order])
    panels = [
        _panel(
            ", ".join(network.name for network in same[one]),
            same[one][0].value.architecture,
            one[1],
            chosen,
        )
        for one in order
    ]
    if panels:
        kinds = [cell.kind for panel in panels for cells in panel.cells for cell in cells]
        made.append(
            GridChart(
                id="heads",
                title="What each layer became",
                caption="A line is a layer, with a square for each head and one for the MLP; "
                "then what else differs between layers or networks. Letter and colour say what "
                "a square computes. Networks of the same architecture share a picture.",
                panels=tuple(panels),
                kinds=hues(sorted(set(kinds) - {""}, key=_order)),
            )
        )
    found = tuple(
        _share_panel(f"{search.name}: {name}", name, layers)
        for search in collected.searches
        for name, layers in _shares_of(search.value).items()
    )
    if found:
        made.append(
            GridChart(
                id="shares",
                title="What the search found",
                caption="How much a place needs what is expensive, from 0 (not at all) to 1: alpha "
                "of attention heads, beta of activations, and of norms and tokens if searched. "
                "The places with the largest numbers keep it.",
                panels=found,
            )
        )
    for table in collected.tables_of(TableKind.SEARCHES):
        made.append(_means_chart("alpha", mean_alphas(table.value.rows), table.name))
    return made


def mean_alphas(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the mean alpha of each layer, over the seeds of each search of a table."""
    by_search: dict[str, list[list[float]]] = {}
    for row in rows:
        layers = [float(mean) for mean in row["mean_alpha_by_layer"].split()]
        by_search.setdefault(row["search"], []).append(layers)
    return {
        name: [fmean(layer) for layer in zip(*seeds, strict=True)]
        for name, seeds in by_search.items()
    }


def search_charts(log: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Return for all that is searched: its values, the means of layers, and their movement."""
    made: list[Chart] = []
    searched = [name for name, value in (log[-1] if log else {}).items() if _is_nested(value)]
    for name in searched:
        epochs = [row for row in log if name in row]
        latest = epochs[-1][name]
        made.append(GridChart(id=name, title=name, panels=(_share_panel("", name, latest),)))
        layers = latest[:-1] if name == "norms" else latest  # the last is the head's
        made.append(_means_chart(name, {"": [_mean(layer) for layer in layers]}))
        movement = tuple(
            line(
                f"layer {layer}" if layer < len(layers) else "head's norm",
                [(row["epoch"], _mean(row[name][layer])) for row in epochs],
                "trained",
                layer,
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
            line(label or "latest", enumerate(values), "trained", hue)
            for hue, (label, values) in enumerate(means.items())
        ),
        y_range=_SHARES,
        whole_x=True,
    )


def _kinds(architecture: Architecture) -> int:
    return len({kind for layer in architecture.layers for kind in layer.kinds})


def _order(kind: str) -> tuple[int, int, str]:
    """Order attention kinds and MLP forms as they are defined, and then the others."""
    for group, known in enumerate(([*KINDS], [form.value for form in MlpForm])):
        if kind in known:
            return group, known.index(kind), kind
    return 2, 0, kind


def _chosen(networks: Sequence[Sequence[LayerForm]]) -> list[str]:
    """Return what is not the same in all layers of all networks, beside heads and MLPs."""
    return [
        one.name
        for one in fields(LayerForm)
        if len({getattr(form, one.name) for forms in networks for form in forms}) > 1
    ]


def _panel(
    name: str, architecture: Architecture, forms: Sequence[LayerForm], chosen: Sequence[str]
) -> Panel:
    heads, most = len(architecture.layers[0].heads), max(form.tokens for form in forms)
    return Panel(
        name=name,
        columns=(*(f"head {head}" for head in range(heads)), "MLP", *chosen),
        cells=tuple(
            (
                *map(_cell, (*layer.heads, layer.mlp)),
                *(_form_cell(one, getattr(form, one), most) for one in chosen),
            )
            for layer, form in zip(architecture.layers, forms, strict=True)
        ),
    )


def _cell(choice: Kind | MlpForm | Sequence[Kind | MlpForm]) -> Cell:
    names = [choice] if isinstance(choice, Kind | MlpForm) else list(choice)
    counts = Counter(names)
    if len(counts) == 1:
        return Cell(text=names[0].symbol, words=names[0].value, kind=names[0].value)
    parts = (f"{count} of {len(names)} tokens {one.value}" for one, count in counts.most_common())
    return Cell(text="*", words=", ".join(parts), kind=_MIXED)


def _form_cell(what: str, value: Any, most: int) -> Cell:
    """Return a layer's norm or activation by the first letters of its name, or its tokens."""
    if isinstance(value, Enum):
        kind = f"{what.rstrip('0123456789')}: {value.value}"
        return Cell(text=value.value[:2], words=f"{what}: {value.value}", kind=kind)
    return Cell(text=str(value), words=f"{value} {what}", share=value / most)


def _shares_of(search: Any) -> dict[str, Any]:
    """Return whatever a search found between 0 and 1, layer by layer."""
    found = {one.name: getattr(search, one.name) for one in fields(search)}
    return {name: value for name, value in found.items() if _is_nested(value)}


def _is_nested(value: Any) -> bool:
    """Return whether this is a list of lists of numbers, at whatever depth."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, list | tuple) for item in value) and all(
        isinstance(item, float | int) or _is_nested([item]) for layer in value for item in layer
    )


def _share_panel(name: str, what: str, layers: Sequence[Sequence[Any]]) -> Panel:
    if what == "norms":
        return _norms_panel(name, layers)
    columns = max(len(layer) for layer in layers)
    several, single = _COLUMNS.get(what, ("{}", what))
    return Panel(
        name=name,
        columns=(single,) if columns == 1 else tuple(several.format(i) for i in range(columns)),
        cells=tuple(tuple(_share(what, values) for values in layer) for layer in layers),
    )


def _norms_panel(name: str, norms: Sequence[Sequence[Any]]) -> Panel:
    """Return the shares of layer norms; that of the norm before the head stands last."""
    *layers, head = norms
    rows = [*layers[:-1], [*layers[-1], *head]]
    return Panel(
        name=name,
        columns=("norm1", "norm2", "head's norm"),
        cells=tuple(tuple(_share("layer norm", value) for value in row) for row in rows),
    )


def _share(name: str, values: Sequence[float] | float) -> Cell:
    rows = values if isinstance(values, Sequence) else [values]
    mean = fmean(rows)
    words = f"{name} {mean:.3f}"
    words += "" if len(rows) == 1 else f", mean of {len(rows)} rows"
    return Cell(text=f"{mean:.2f}", words=words, share=mean)


def _mean(values: Any) -> float:
    """Return the mean of numbers, or of equally long lists of numbers."""
    return fmean(_mean(item) for item in values) if isinstance(values, Sequence) else float(values)

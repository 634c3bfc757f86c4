"""What each head and MLP became, and how much a search found that it is needed."""

import statistics
from collections import Counter
from collections.abc import Sequence

from mpcvit.artifacts.architecture import Architecture, AttentionKind, LayerArchitecture, MlpForm
from mpcvit.artifacts.search import SearchResult
from mpcvit.report.charts.chart import Cell, GridChart, Panel, hues
from mpcvit.report.findings import Findings

_MIXED = "mixed over tokens"


def charts(findings: Findings) -> list[GridChart]:
    """Every distinct architecture once, and every search."""
    found = []
    names: dict[str, list[str]] = {}
    architectures: dict[str, Architecture] = {}
    for network in findings.networks:
        digest = network.held.architecture.digest()
        names.setdefault(digest, []).append(network.name)
        architectures[digest] = network.held.architecture
    # those with a choice first
    order = sorted(architectures, key=lambda digest: _kinds(architectures[digest]) < 2)
    panels = [_panel(", ".join(names[digest]), architectures[digest]) for digest in order]
    if panels:
        kinds = [cell.kind for panel in panels for cells in panel.cells for cell in cells]
        found.append(
            GridChart(
                id="heads",
                title="What each head became",
                caption="A square is a head, the last of a line the layer's MLP; its letter and "
                "colour say what it computes. Networks of the same architecture share a picture.",
                panels=tuple(panels),
                kinds=hues(sorted(set(kinds), key=_place)),
            )
        )
    searches = [_search_panel(search.name, search.held) for search in findings.searches]
    if searches:
        found.append(
            GridChart(
                id="alpha",
                title="What the search found",
                caption="Alpha of each head after the search: how much it needs the dearer "
                "attention, from 0 (not at all) to 1. The heads with the largest keep it.",
                panels=tuple(searches),
            )
        )
    return found


def _kinds(architecture: Architecture) -> int:
    return len({kind for layer in architecture.layers for kind in layer.kinds})


def _place(kind: str) -> tuple[int, int]:
    """Attention kinds and MLP forms in the order of their definitions, the mixed last."""
    for group, names in enumerate((AttentionKind, MlpForm)):
        known = [name.value for name in names]
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


def _cell(choice: AttentionKind | MlpForm | Sequence[AttentionKind | MlpForm]) -> Cell:
    names = [choice] if isinstance(choice, AttentionKind | MlpForm) else list(choice)
    counts = Counter(names)
    if len(counts) == 1:
        return Cell(text=names[0].symbol, words=names[0].value, kind=names[0].value)
    parts = (f"{count} of {len(names)} tokens {one.value}" for one, count in counts.most_common())
    return Cell(text="*", words=", ".join(parts), kind=_MIXED)


def _search_panel(name: str, result: SearchResult) -> Panel:
    columns = max(len(heads) for heads in result.alpha)
    label = "all heads" if columns == 1 and result.model.heads > 1 else "head"
    return Panel(
        name=name,
        columns=tuple(label if columns == 1 else f"{label} {head}" for head in range(columns)),
        cells=tuple(tuple(_alpha(rows) for rows in heads) for heads in result.alpha),
    )


def _alpha(rows: Sequence[float]) -> Cell:
    mean = statistics.fmean(rows)
    words = f"alpha {mean:.3f}" if len(rows) == 1 else f"alpha {mean:.3f}, mean of {len(rows)} rows"
    return Cell(text=f"{mean:.2f}", words=words, share=mean)

"""Trained networks side by side: accuracy, what remains of them, and their seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcvit.artifacts.architecture import Architecture, AttentionKind
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import MODEL_FILE
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.storage import replacing


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """One trained network; seconds are modelled, by the table that `latency_source` names."""

    name: str
    top1: float | None
    modelled_s: float
    exchanges: float
    sent_mb: float
    heads: str
    gelu_share: float
    parameters: int
    origin: str
    epochs: int | None
    seed: int | None
    latency_source: str

    @classmethod
    def of(
        cls, name: str, checkpoint: Checkpoint, latency: LatencyTable | None = None
    ) -> "NetworkRow":
        table = latency or estimate(checkpoint.model)
        cost = table.price(checkpoint.architecture)
        config = checkpoint.provenance.config
        return cls(
            name=name,
            top1=checkpoint.provenance.metrics.get("test_top1"),
            modelled_s=table.seconds(cost),
            exchanges=cost.exchanges,
            sent_mb=cost.sent_bytes / 1e6,
            heads=describe_heads(checkpoint.architecture),
            gelu_share=activated_share(checkpoint.architecture, checkpoint.model.tokens),
            parameters=checkpoint.parameter_count,
            origin=checkpoint.provenance.origin,
            epochs=config["train"]["epochs"] if config else None,
            seed=config["seed"] if config else None,
            latency_source=table.source,
        )


def read_networks(
    places: Sequence[Path], latency: LatencyTable | None = None
) -> tuple[list[NetworkRow], list[Path]]:
    """The networks in run folders or checkpoint files, and the places that hold none."""
    rows, empty = [], []
    for place in places:
        if place.is_dir():
            files = sorted(place.rglob(MODEL_FILE))
        elif place.exists():
            files = [place]
        else:
            raise UserError(f"there is no run or model {place}")
        if not files:
            empty.append(place)
        for file in files:
            name = str(file.parent if file.name == MODEL_FILE else file)
            rows.append(NetworkRow.of(name, Checkpoint.load(file), latency))
    return rows, empty


def best_trade_offs(rows: Sequence[NetworkRow]) -> set[str]:
    """Names of the networks that no other beats in both accuracy and seconds."""
    judged = [(row, row.top1) for row in rows if row.top1 is not None]
    return {
        row.name
        for row, top1 in judged
        if not any(
            other_top1 >= top1
            and other.modelled_s <= row.modelled_s
            and (other_top1 > top1 or other.modelled_s < row.modelled_s)
            for other, other_top1 in judged
        )
    }


def draw_trade_off(
    path: Path, points: Mapping[str, Sequence[tuple[str, float, float]]], source: str
) -> None:
    """Accuracy against seconds: series of (label, seconds, top-1 in %)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    for series, members in points.items():
        ordered = sorted(members, key=lambda point: point[1])
        line = "-" if len(ordered) > 1 else ""
        seconds, accuracy = ([point[place] for point in ordered] for place in (1, 2))
        axes.plot(seconds, accuracy, line, marker="o", label=series)
        for label, x, y in ordered:
            axes.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    axes.set(xlabel="modelled seconds of a private inference", ylabel="top-1 accuracy (%)")
    axes.set_title(source, fontsize=7, wrap=True)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A value with its interval."""

    label: str
    value: float
    low: float
    high: float


def draw_bars(path: Path, bars: Sequence[Bar]) -> None:
    """Accuracy of each network with its confidence interval."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.4 * len(bars) + 1.2), layout="constrained")
    axes = figure.subplots()
    values = [bar.value for bar in bars]
    # an interval may end on a side of the value by rounding
    reach = [
        [max(0.0, bar.value - bar.low) for bar in bars],
        [max(0.0, bar.high - bar.value) for bar in bars],
    ]
    axes.barh([bar.label for bar in bars], values, xerr=reach, capsize=3)
    axes.invert_yaxis()
    axes.set(xlabel="top-1 accuracy (%), with 95 % interval", xlim=(max(0, min(values) - 10), None))
    axes.grid(axis="x", alpha=0.3)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def describe_heads(architecture: Architecture) -> str:
    """How many heads are of which kind.

    >>> describe_heads(Architecture.uniform(AttentionKind.SCALING, depth=3, heads=2))
    '6 scaling'
    """
    counts = {kind: architecture.count(kind) for kind in AttentionKind}
    return " + ".join(f"{count:g} {kind.value}" for kind, count in counts.items() if count > 0)


def activated_share(architecture: Architecture, tokens: int) -> float:
    """The share of tokens, over all layers, whose MLP keeps its activation."""
    kept = 0
    for layer in architecture.layers:
        forms: Any = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,) * tokens
        kept += sum(form.keeps_activation for form in forms)
    return kept / (tokens * len(architecture.layers))

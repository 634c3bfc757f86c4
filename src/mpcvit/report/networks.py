"""Trained networks side by side: accuracy, what remains of them, and their seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import MODEL_FILE
from mpcvit.artifacts.resolve import made_explicit
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.kinds.table import KINDS
from mpcvit.model.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class NetworkRow:
    """A trained network; `latency_source` names the table behind its modelled seconds."""

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
        architecture = checkpoint.architecture
        if table.prices_forms:
            architecture = made_explicit(checkpoint.model, architecture)
        cost = table.price(architecture)
        config = checkpoint.provenance.config
        return cls(
            name=name,
            top1=checkpoint.provenance.top1,
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
    paths: Sequence[Path], latency: LatencyTable | None = None
) -> tuple[list[NetworkRow], list[Path]]:
    """Return the networks of run folders and checkpoints, and the paths that hold none."""
    rows, empty = [], []
    for path in paths:
        if path.is_dir():
            files = sorted(path.rglob(MODEL_FILE))
        elif path.exists():
            files = [path]
        else:
            raise UserError(f"there is no run or model {path}")
        if not files:
            empty.append(path)
        for file in files:
            name = str(file.parent if file.name == MODEL_FILE else file)
            rows.append(NetworkRow.of(name, Checkpoint.load(file), latency))
    return rows, empty


def best_trade_offs(rows: Sequence[NetworkRow]) -> set[str]:
    """Return the names of networks that no other beats in both accuracy and seconds."""
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


def describe_heads(architecture: Architecture) -> str:
    """Return the number of heads of each kind.

    >>> describe_heads(Architecture.uniform(KINDS["scaling"], depth=3, heads=2))
    '6 scaling'
    """
    counts = {kind: architecture.count(kind) for kind in KINDS.values()}
    return " + ".join(f"{count:g} {kind.value}" for kind, count in counts.items() if count > 0)


def activated_share(architecture: Architecture, tokens: int) -> float:
    """Return the share of tokens, over all layers, whose MLP keeps its activation."""
    kept = 0
    for layer in architecture.layers:
        forms: Any = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,) * tokens
        kept += sum(form.keeps_activation for form in forms)
    return kept / (tokens * len(architecture.layers))

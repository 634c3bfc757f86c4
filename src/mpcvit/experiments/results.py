"""Rows of an experiment: one per run, a summary over seeds, and a figure."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import Provenance, read_rows, write_rows
from mpcvit.artifacts.resolve import fewer_tokens
from mpcvit.artifacts.search import SearchResult
from mpcvit.errors import UserError
from mpcvit.experiments.catalogue import Experiment, find_experiment
from mpcvit.experiments.differences import CONFIDENCE, differences, reach_of_mean
from mpcvit.experiments.published import published
from mpcvit.experiments.recipes import Recipe, SearchRecipe
from mpcvit.report.charts.heads import mean_alphas
from mpcvit.report.networks import NetworkRow
from mpcvit.report.page import draw_table


@dataclass(frozen=True, kw_only=True)
class NetworkRun:
    """One network with one seed; its top-1 is None where training diverged."""

    recipe: Recipe
    config: Config
    network: NetworkRow
    architecture: Architecture
    provenance: Provenance
    log: Sequence[Mapping[str, Any]]  # by epoch

    @property
    def top1(self) -> float | None:
        """In percent."""
        return None if self.network.top1 is None else 100 * self.network.top1

    def to_row(self) -> dict[str, Any]:
        network = self.network
        return {
            "network": self.recipe.name,
            "seed": self.config.seed,
            "top1": FAILED if self.top1 is None else round(self.top1, 2),
            "modelled_s": round(network.modelled_s, 3),
            "exchanges": round(network.exchanges),
            "sent_mb": round(network.sent_mb, 3),
            "heads": network.heads,
            "gelu_share": round(network.gelu_share, 4),
            "epochs": self.config.train.epochs,
            "distilled": self.recipe.teacher is not None,
            "prices": network.latency_source,
            **_origin(self.config, self.provenance),
        }

    def to_layer_rows(self) -> list[dict[str, Any]]:
        """Return the architecture, a row for each layer, in the words of its file."""
        layers = json.loads(self.architecture.to_json())["layers"]
        return [
            {
                "network": self.recipe.name,
                "seed": self.config.seed,
                "layer": index,
                **{part: json.dumps(choice) for part, choice in layer.items()},
            }
            for index, layer in enumerate(layers)
        ]

    def to_epoch_rows(self) -> list[dict[str, Any]]:
        """Return a row per epoch; the loss of a retraining has its teacher's terms in it."""
        known = {"network": self.recipe.name, "seed": self.config.seed}
        return [
            {
                **known,
                "epoch": epoch["epoch"],
                **{name: round(epoch[name], 4) if name in epoch else "" for name in _LEARNT},
                **{name: round(epoch[name], 4) for name in _VALIDATED if name in epoch},
            }
            for epoch in self.log
        ]


Row = Mapping[str, Any]
FAILED = "fail"
_LEARNT = ("train_loss", "train_top1", "test_loss", "test_top1")
_VALIDATED = ("validation_loss", "validation_top1")


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """One search with one seed."""

    recipe: SearchRecipe
    config: Config
    result: SearchResult

    @property
    def layer_means(self) -> list[float]:
        return [
            statistics.fmean(value for rows in heads for value in rows)
            for heads in self.result.alpha
        ]

    def to_row(self) -> dict[str, Any]:
        return {
            "search": self.recipe.name,
            "seed": self.config.seed,
            "latency_weight": self.result.search.latency_weight,
            "mixture_top1": round(100 * (self.result.provenance.top1 or 0.0), 2),
            "mean_alpha_by_layer": " ".join(f"{mean:.4f}" for mean in self.layer_means),
            "epochs": self.config.train.epochs,
            "prices": self.result.latency.source,
            **_origin(self.config, self.result.provenance),
        }

    def to_importance_rows(self) -> list[dict[str, Any]]:
        """Return every share that was learnt; a place is empty where all share the choice."""
        result = self.result
        known = {"search": self.recipe.name, "seed": self.config.seed}
        rows = []

        def add(parameter: str, layer: int | str, value: float, **place: int | str) -> None:
            nowhere = {"head": "", "token": ""}
            where = {"parameter": parameter, "layer": layer, **nowhere, **place}
            rows.append({**known, **where, "value": value})

        for layer, heads in enumerate(result.alpha):
            for head, values in enumerate(heads):
                for row, value in enumerate(values):
                    place = {
                        "head": head if len(heads) > 1 else "",
                        "token": row if len(values) > 1 else "",
                    }
                    add("alpha", layer, value, **place)
        for layer, values in enumerate(result.beta):
            for token, value in enumerate(values):
                add("beta", layer, value, token=token if len(values) > 1 else "")
        for layer, values in enumerate(result.norms[:-1]):
            for name, value in zip(("norm1", "norm2"), values, strict=True):
                add(name, layer, value)
        if result.norms:
            add("norm", "head", *result.norms[-1])
        for layer, values in enumerate(result.tokens):
            counts = fewer_tokens(result.model, result.search)
            for count, value in zip(counts, values, strict=True):
                add(f"more than {count} tokens", layer, value)
        return rows


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One network over its seeds; percent and modelled seconds.

    The 95 % interval is Student's over seeds, or the test images' (Wilson's)
    where there is one seed.
    """

    network: str
    seeds: int
    epochs: int
    top1_mean: float | str
    top1_low: float | str
    top1_high: float | str
    interval: str
    modelled_s: float
    exchanges: float
    sent_mb: float
    prices: str
    paper_top1: float | str
    paper_s: float | str


def summarise(config: str, experiment: str, rows: Sequence[Row], images: int) -> list[Summary]:
    """Summarise the rows of runs, a network at a time."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["network"], []).append(row)
    summaries = []
    for name, group in by_name.items():
        percents = [float(row["top1"]) for row in group if row["top1"] != FAILED]
        low, high = interval(percents, images) if percents else (math.nan, math.nan)
        paper = published(config, experiment, name)
        summaries.append(
            Summary(
                network=name,
                seeds=len(group),
                epochs=int(group[0]["epochs"]),
                top1_mean=round(statistics.fmean(percents), 2) if percents else FAILED,
                top1_low=round(low, 2) if percents else "",
                top1_high=round(high, 2) if percents else "",
                interval="seeds" if len(percents) > 1 else "test images" if percents else "",
                modelled_s=round(_mean(group, "modelled_s"), 3),
                exchanges=round(_mean(group, "exchanges"), 1),
                sent_mb=round(_mean(group, "sent_mb"), 3),
                prices=group[0]["prices"],
                paper_top1="" if paper.top1 is None else paper.top1,
                paper_s="" if paper.latency_s is None else paper.latency_s,
            )
        )
    return summaries


def _mean(rows: Sequence[Row], column: str) -> float:
    return statistics.fmean(float(row[column]) for row in rows)


def interval(percents: Sequence[float], images: int) -> tuple[float, float]:
    """Return a 95 % confidence interval of a mean accuracy, in percent.

    >>> [round(x, 1) for x in interval([60.0, 62.0], images=10_000)]
    [48.3, 73.7]
    >>> [round(x, 1) for x in interval([60.0], images=10_000)]
    [59.0, 61.0]
    """
    if len(percents) == 1:
        right = round(percents[0] / 100 * images)
        found = stats.binomtest(right, images).proportion_ci(CONFIDENCE, method="wilson")
        return 100 * float(found.low), 100 * float(found.high)
    mean, reach = statistics.fmean(percents), reach_of_mean(percents)
    return max(0.0, mean - reach), min(100.0, mean + reach)


def write_network_results(
    experiment: Experiment, runs: Sequence[NetworkRun], images: int, folder: Path
) -> list[Summary]:
    """Write what there is so far: runs, epochs, architectures, summary, differences, figure.

    Rows of earlier runs stay in the files, also where their run folders are gone.
    """
    _require_comparable(experiment, runs, folder)

    def write(part: str, rows: Sequence[Row]) -> list[Row]:
        both = with_earlier(experiment, rows, folder, part)
        if both:
            write_rows(folder / f"{experiment.name}{part}.csv", both)
        return both

    write("-architectures", [row for run in runs for row in run.to_layer_rows()])
    write("-epochs", [row for run in runs for row in run.to_epoch_rows()])
    rows = write("-runs", [run.to_row() for run in runs])
    summaries = summarise(runs[0].config.name, experiment.name, rows, images)
    write_rows(folder / f"{experiment.name}.csv", [asdict(summary) for summary in summaries])
    accuracies: dict[str, dict[int, float]] = {}
    for row in rows:
        if row["top1"] != FAILED:
            accuracies.setdefault(row["network"], {})[int(row["seed"])] = float(row["top1"])
    if pairs := [asdict(pair) for pair in differences(accuracies)]:
        write_rows(folder / f"{experiment.name}-differences.csv", pairs)
    draw_table(folder / f"{experiment.name}.csv")
    return summaries


def with_earlier(experiment: Experiment, rows: Sequence[Row], folder: Path, part: str) -> list[Row]:
    """Return rows with those of other runs that are in the file, by seed and then as listed."""
    made = {_key(row) for row in rows}
    earlier = read_rows(folder / f"{experiment.name}{part}.csv")
    both = [*(row for row in earlier if _key(row) not in made), *rows]
    listed = [*find_experiment(experiment.name).row_names, *(_key(row)[0] for row in both)]
    return sorted(both, key=lambda row: (int(row["seed"]), listed.index(_key(row)[0])))


def _require_comparable(experiment: Experiment, runs: Sequence[NetworkRun], folder: Path) -> None:
    """Refuse to put runs beside earlier ones of other settings."""
    path = folder / f"{experiment.name}-runs.csv"
    here = runs[0].to_row()
    for row in read_rows(path):
        for column in ("config", "epochs", "data_fingerprint"):
            if row.get(column) != str(here[column]):
                raise UserError(
                    f"{path} holds runs with another {column} ({row.get(column)} instead of "
                    f"{here[column]}); name another folder with --out"
                )


def _key(row: Row) -> tuple[str, str]:
    """Return the network or search of a row, and its seed."""
    return row["network"] if "network" in row else row["search"], str(row["seed"])


def write_search_results(
    experiment: Experiment, runs: Sequence[SearchRun], folder: Path
) -> Mapping[str, list[float]]:
    """Write searches and the figure of their mean alpha per layer, over seeds."""
    rows = with_earlier(experiment, [run.to_row() for run in runs], folder, "")
    write_rows(folder / f"{experiment.name}.csv", rows)
    write_importance(experiment, runs, folder)
    draw_table(folder / f"{experiment.name}.csv")
    return mean_alphas(rows)


def write_importance(experiment: Experiment, runs: Sequence[SearchRun], folder: Path) -> None:
    """Write every share that the searches of an experiment learnt."""
    rows = [row for run in runs for row in run.to_importance_rows()]
    rows = with_earlier(experiment, rows, folder, "-importance")
    write_rows(folder / f"{experiment.name}-importance.csv", rows)


def _origin(config: Config, provenance: Provenance) -> dict[str, Any]:
    return {
        "config": config.name,
        "data_fingerprint": provenance.data_fingerprint,
        "commit": provenance.environment.commit,
        "created": provenance.environment.created,
        "hardware": provenance.environment.hardware,
    }

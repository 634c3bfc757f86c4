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
from mpcvit.artifacts.provenance import Provenance, write_rows
from mpcvit.artifacts.search import SearchResult
from mpcvit.experiments.catalogue import Experiment
from mpcvit.experiments.differences import CONFIDENCE, differences
from mpcvit.experiments.published import published
from mpcvit.experiments.recipes import Recipe, SearchRecipe
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
            "top1": "fail" if self.top1 is None else round(self.top1, 2),
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
            }
            for epoch in self.log
        ]


_LEARNT = ("train_loss", "train_top1", "test_loss", "test_top1")


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
        """Return each alpha and beta; a place is empty where all share the choice."""
        known = {"search": self.recipe.name, "seed": self.config.seed}
        rows = []
        for layer, heads in enumerate(self.result.alpha):
            for head, values in enumerate(heads):
                for row, value in enumerate(values):
                    place = {
                        "layer": layer,
                        "head": head if len(heads) > 1 else "",
                        "token": row if len(values) > 1 else "",
                    }
                    rows.append({**known, "parameter": "alpha", **place, "value": value})
        for layer, values in enumerate(self.result.beta):
            for token, value in enumerate(values):
                place = {"layer": layer, "head": "", "token": token if len(values) > 1 else ""}
                rows.append({**known, "parameter": "beta", **place, "value": value})
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


def summarise(experiment: Experiment, runs: Sequence[NetworkRun], images: int) -> list[Summary]:
    by_name: dict[str, list[NetworkRun]] = {}
    for run in runs:
        by_name.setdefault(run.recipe.name, []).append(run)
    summaries = []
    for name, group in by_name.items():
        found = [run.top1 for run in group if run.top1 is not None]
        low, high = interval(found, images) if found else (math.nan, math.nan)
        paper = published(group[0].config.name, experiment.name, name)
        summaries.append(
            Summary(
                network=name,
                seeds=len(group),
                epochs=group[0].config.train.epochs,
                top1_mean=round(statistics.fmean(found), 2) if found else "fail",
                top1_low=round(low, 2) if found else "",
                top1_high=round(high, 2) if found else "",
                interval="seeds" if len(found) > 1 else "test images" if found else "",
                modelled_s=round(statistics.fmean(run.network.modelled_s for run in group), 3),
                exchanges=round(statistics.fmean(run.network.exchanges for run in group), 1),
                sent_mb=round(statistics.fmean(run.network.sent_mb for run in group), 3),
                prices=group[0].network.latency_source,
                paper_top1="" if paper.top1 is None else paper.top1,
                paper_s="" if paper.latency_s is None else paper.latency_s,
            )
        )
    return summaries


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
    mean, deviation = statistics.fmean(percents), statistics.stdev(percents)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(percents) - 1))
    reach = quantile * deviation / math.sqrt(len(percents))
    return max(0.0, mean - reach), min(100.0, mean + reach)


def write_network_results(
    experiment: Experiment, runs: Sequence[NetworkRun], images: int, folder: Path
) -> list[Summary]:
    """Write what there is so far: runs, epochs, architectures, summary, differences, figure."""
    summaries = summarise(experiment, runs, images)
    layers = [row for run in runs for row in run.to_layer_rows()]
    write_rows(folder / f"{experiment.name}-architectures.csv", layers)
    write_rows(folder / f"{experiment.name}-runs.csv", [run.to_row() for run in runs])
    if epochs := [row for run in runs for row in run.to_epoch_rows()]:
        write_rows(folder / f"{experiment.name}-epochs.csv", epochs)
    write_rows(folder / f"{experiment.name}.csv", [asdict(summary) for summary in summaries])
    accuracies: dict[str, dict[int, float]] = {}
    for run in runs:
        if run.top1 is not None:
            accuracies.setdefault(run.recipe.name, {})[run.config.seed] = run.top1
    if pairs := [asdict(pair) for pair in differences(accuracies)]:
        write_rows(folder / f"{experiment.name}-differences.csv", pairs)
    draw_table(folder / f"{experiment.name}.csv")
    return summaries


def write_search_results(
    experiment: Experiment, runs: Sequence[SearchRun], folder: Path
) -> Mapping[str, list[float]]:
    """Write searches and the figure of their mean alpha per layer, over seeds."""
    write_rows(folder / f"{experiment.name}.csv", [run.to_row() for run in runs])
    write_importance(experiment, runs, folder)
    by_name: dict[str, list[list[float]]] = {}
    for run in runs:
        by_name.setdefault(run.recipe.name, []).append(run.layer_means)
    means = {
        name: [statistics.fmean(layer) for layer in zip(*found, strict=True)]
        for name, found in by_name.items()
    }
    draw_table(folder / f"{experiment.name}.csv")
    return means


def write_importance(experiment: Experiment, runs: Sequence[SearchRun], folder: Path) -> None:
    """Write every alpha and beta of the searches that an experiment stands on."""
    rows = [row for run in runs for row in run.to_importance_rows()]
    write_rows(folder / f"{experiment.name}-importance.csv", rows)


def _origin(config: Config, provenance: Provenance) -> dict[str, Any]:
    return {
        "config": config.name,
        "data_fingerprint": provenance.data_fingerprint,
        "commit": provenance.environment.commit,
        "created": provenance.environment.created,
        "hardware": provenance.environment.hardware,
    }

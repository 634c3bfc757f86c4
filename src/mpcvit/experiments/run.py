"""Runs an experiment: each network and search once, resumed where it was left."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import write_rows
from mpcvit.codec import decode
from mpcvit.experiments.catalogue import Experiment
from mpcvit.experiments.recipes import Recipe, SearchRecipe
from mpcvit.experiments.results import (
    NetworkRun,
    SearchRun,
    Summary,
    with_earlier,
    write_importance,
    write_network_results,
    write_search_results,
)
from mpcvit.experiments.store import RunStore
from mpcvit.report.networks import NetworkRow
from mpcvit.train.evaluate import evaluate_checkpoint
from mpcvit.train.log import read_log


def run_experiment(
    experiment: Experiment,
    store: RunStore,
    seeds: Sequence[int],
    out: Path,
    *,
    only_finished: bool = False,
) -> tuple[list[Summary], Mapping[str, list[float]]]:
    """Run every row with every seed; results are written anew after each run.

    Returns the networks' summary and the searches' mean alpha per layer. With
    `only_finished` nothing is trained: rows that are not there are left out.
    """
    store = replace(store, length=experiment.length)
    networks: list[NetworkRun] = []
    searches: list[SearchRun] = []
    summaries: list[Summary] = []
    means: Mapping[str, list[float]] = {}
    images = len(store.dataset.judging)
    for seed in seeds:
        for recipe in experiment.networks:
            if only_finished and not store.is_finished(recipe, seed):
                continue
            networks.append(_network_run(store, recipe, seed))
            summaries = write_network_results(experiment, networks, images, out)
            if recipe.derivation is not None:
                origin = recipe.derivation.search
                if not any((run.recipe, run.config.seed) == (origin, seed) for run in searches):
                    searches.append(_search_run(store, origin, seed))
                write_importance(experiment, searches, out)
            jax.clear_caches()  # the next row compiles its own
        for recipe in experiment.searches:
            if only_finished and not store.is_finished(recipe, seed):
                continue
            searches.append(_search_run(store, recipe, seed))
            means = write_search_results(experiment, searches, out)
            jax.clear_caches()
    return summaries, means


def judge_by_test_images(
    experiment: Experiment, store: RunStore, seeds: Sequence[int], out: Path
) -> list[dict[str, Any]]:
    """Evaluate every finished network on the test split, and write a row for each.

    Choices are made by the validation split, so this comes after all of them. Rows of
    earlier runs stay in the file.
    """
    store = replace(store, length=experiment.length)
    rows: list[dict[str, Any]] = []
    finished = (
        (recipe, seed)
        for recipe in experiment.networks
        for seed in seeds
        if store.is_finished(recipe, seed)
    )
    for recipe, seed in finished:
        checkpoint = store.network(recipe, seed).value
        if checkpoint is None:  # its training diverged
            continue
        settings = store.network_config(recipe, seed).train
        evaluation = evaluate_checkpoint(checkpoint, store.dataset.test, settings.eval_batch_size)
        provenance = checkpoint.provenance
        rows.append(
            {
                "network": recipe.name,
                "seed": seed,
                "epochs": settings.epochs,
                "validation_top1": round(100 * (provenance.top1 or 0.0), 2),
                "test_top1": round(100 * evaluation.top1, 2),
                "test_loss": round(evaluation.loss, 4),
                "test_images": evaluation.images,
                "commit": provenance.environment.commit,
            }
        )
        jax.clear_caches()  # the next network compiles its own
    if rows:
        write_rows(
            out / f"{experiment.name}-test.csv", with_earlier(experiment, rows, out, "-test")
        )
    return rows


def _network_run(store: RunStore, recipe: Recipe, seed: int) -> NetworkRun:
    """Return a trained network as a row, without accuracy if its training diverged."""
    checkpoint = store.network(recipe, seed).value or store.untrained(recipe, seed)
    return NetworkRun(
        recipe=recipe,
        config=decode(Config, checkpoint.provenance.config, recipe.name),
        network=NetworkRow.of(recipe.name, checkpoint, store.price(checkpoint.model)),
        architecture=checkpoint.architecture,
        provenance=checkpoint.provenance,
        log=tuple(read_log(store.network_folder(recipe, seed))),
    )


def _search_run(store: RunStore, recipe: SearchRecipe, seed: int) -> SearchRun:
    result = store.search(recipe, seed).value
    assert result is not None  # a search ends with a result or raises
    config = decode(Config, result.provenance.config, recipe.name)
    return SearchRun(recipe=recipe, config=config, result=result)

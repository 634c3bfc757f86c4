"""Runs an experiment: each network and search once, resumed where it was left.

A run's folder is named by configuration, recipe, seed and epochs, so that
experiments share what they have in common: a teacher, a search, a baseline.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config, ModelConfig, load_config
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import MODEL_FILE, SEARCH_FILE, STATE_FILE, Environment, Provenance
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import decode, encode
from mpcvit.data import Dataset
from mpcvit.errors import UserError
from mpcvit.experiments.catalogue import Experiment, Length
from mpcvit.experiments.recipes import Derivation, Recipe, SearchRecipe
from mpcvit.experiments.results import (
    NetworkRun,
    SearchRun,
    Summary,
    write_importance,
    write_network_results,
    write_search_results,
)
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import init_parameters
from mpcvit.report.networks import NetworkRow
from mpcvit.search.derive import MlpRule, derive_by_budget, derive_by_ratio
from mpcvit.search.task import search
from mpcvit.storage import write_text
from mpcvit.train.distilled import retrain
from mpcvit.train.log import read_log
from mpcvit.train.loop import DivergedError, Observer
from mpcvit.train.state import first_difference, identify
from mpcvit.train.supervised import train

DIVERGED_FILE = "diverged.txt"

Watch = Callable[[str], AbstractContextManager[Sequence[Observer]]]
"""Who watches the run of that name."""

Price = Callable[[ModelConfig], LatencyTable]
"""What each choice of a model costs."""


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where runs come from and go to: a configuration, its data, folders, seconds.

    With a `length` all networks train its epochs. Without, those on labels alone
    train `train.epochs`, and those from a search or with a teacher `distill.epochs`.
    """

    config_file: Path
    overrides: tuple[str, ...]
    dataset: Dataset
    runs: Path
    price: Price
    watch: Watch
    length: Length | None = None

    def config(self, settings: Sequence[str], heads: int, seed: int) -> Config:
        """The configuration with a recipe's settings; a width grows until heads divide it."""
        changes = [*self.overrides, *settings, f"seed={seed}"]
        if heads:
            width = load_config(self.config_file, self.overrides).model.width
            changes += [f"model.heads={heads}", f"model.width={-(-width // heads) * heads}"]
        return load_config(self.config_file, changes)

    def network_config(self, recipe: Recipe, seed: int) -> Config:
        """Return a network's configuration, with the epochs that it trains in both sections."""
        config = self.config(recipe.settings, recipe.heads, seed)
        derived = recipe.derivation is not None or recipe.teacher is not None
        length = self.length or (Length.DISTILL if derived else Length.TRAIN)
        epochs = (config.train if length is Length.TRAIN else config.distill).epochs
        return replace(
            config,
            train=replace(config.train, epochs=epochs),
            distill=replace(config.distill, epochs=epochs),
        )

    def network_folder(self, recipe: Recipe, seed: int) -> Path:
        return self._folder(self.network_config(recipe, seed), recipe.name)

    def _folder(self, config: Config, name: str) -> Path:
        leaf = f"seed-{config.seed}-epochs-{config.train.epochs}"
        return self.runs / config.name / name / leaf

    def search(self, recipe: SearchRecipe, seed: int) -> SearchResult:
        """What the search found; it runs first where it has not."""
        config = self._search_config(recipe, seed)
        folder = self._folder(config, recipe.name)
        if _is_finished(folder, SEARCH_FILE, config):
            result = SearchResult.load(folder)
            self._require_same(folder, result.provenance, config, "search")
            return result
        latency = self.price(config.model)
        with self.watch(f"{recipe.name}, seed {seed}") as observers:
            return search(
                config,
                self.dataset,
                folder,
                latency=latency,
                resume=(folder / STATE_FILE).exists(),
                observers=observers,
            )

    def has_finished(self, recipe: Recipe, seed: int) -> bool:
        """Say whether a network, and the search that it comes from, need no more training."""
        if recipe.derivation is not None and not self.has_searched(recipe.derivation.search, seed):
            return False
        config = self.network_config(recipe, seed)
        folder = self._folder(config, recipe.name)
        return _is_finished(folder, MODEL_FILE, config) or (folder / DIVERGED_FILE).exists()

    def has_searched(self, recipe: SearchRecipe, seed: int) -> bool:
        config = self._search_config(recipe, seed)
        return _is_finished(self._folder(config, recipe.name), SEARCH_FILE, config)

    def _search_config(self, recipe: SearchRecipe, seed: int) -> Config:
        config = self.config(recipe.settings, recipe.heads, seed)
        return replace(config, train=replace(config.train, epochs=config.search.epochs))

    def search_run(self, recipe: SearchRecipe, seed: int) -> SearchRun:
        result = self.search(recipe, seed)
        config = decode(Config, result.provenance.config, recipe.name)
        return SearchRun(recipe=recipe, config=config, result=result)

    def derive(self, derivation: Derivation, seed: int) -> Architecture:
        result = self.search(derivation.search, seed)
        form = derivation.mlp_form
        rule = None if form is None else MlpRule(form=form, threshold=derivation.gelu_threshold)
        if derivation.budget_s is not None:
            return derive_by_budget(result, derivation.budget_s, mlp=rule).architecture
        return derive_by_ratio(
            result, derivation.ratio, per_layer=derivation.per_layer, mlp=rule
        ).architecture

    def network_run(self, recipe: Recipe, seed: int) -> NetworkRun:
        """The trained network as a row; where training diverged, a row without accuracy."""
        try:
            checkpoint = self.network(recipe, seed)
        except DivergedError:
            checkpoint = self._untrained(recipe, seed)
        return NetworkRun(
            recipe=recipe,
            config=decode(Config, checkpoint.provenance.config, recipe.name),
            network=NetworkRow.of(recipe.name, checkpoint, self.price(checkpoint.model)),
            architecture=checkpoint.architecture,
            provenance=checkpoint.provenance,
            log=tuple(read_log(self.network_folder(recipe, seed))),
        )

    def network(self, recipe: Recipe, seed: int) -> Checkpoint:
        """The trained network; what it stands on runs first where it has not."""
        config, architecture = self._plan(recipe, seed)
        folder = self._folder(config, recipe.name)
        if _is_finished(folder, MODEL_FILE, config):
            checkpoint = Checkpoint.load(folder / MODEL_FILE)
            own = () if recipe.teacher is None else ("distill",)
            self._require_same(folder, checkpoint.provenance, config, *own)
            if checkpoint.architecture != architecture:
                raise UserError(
                    f"{folder} holds another architecture than its search now gives; remove it"
                )
            if recipe.teacher is not None:
                self._require_teacher(folder, checkpoint, recipe.teacher, seed)
            return checkpoint
        if (folder / DIVERGED_FILE).exists():
            raise DivergedError((folder / DIVERGED_FILE).read_text("utf-8"))
        teacher = None if recipe.teacher is None else self.network(recipe.teacher, seed)
        resume = (folder / STATE_FILE).exists()
        try:
            with self.watch(f"{recipe.name}, seed {seed}") as observers:
                if teacher is None:
                    return train(
                        config,
                        self.dataset,
                        folder,
                        architecture=architecture,
                        resume=resume,
                        observers=observers,
                    )
                return retrain(
                    config,
                    self.dataset,
                    folder,
                    architecture=architecture,
                    teacher=teacher,
                    resume=resume,
                    observers=observers,
                )
        except DivergedError as error:
            write_text(folder / DIVERGED_FILE, str(error))
            raise

    def _plan(self, recipe: Recipe, seed: int) -> tuple[Config, Architecture]:
        """Return a network's configuration and architecture."""
        config = self.network_config(recipe, seed)
        if recipe.derivation is not None:
            return config, self.derive(recipe.derivation, seed)
        model = config.model
        return config, Architecture.uniform(model.attention, depth=model.depth, heads=model.heads)

    def _require_same(
        self, folder: Path, before: Provenance, config: Config, *sections: str
    ) -> None:
        """Refuse a run that was made otherwise; `sections` are those that only its stage reads."""

        def known_by(one: Config, data_fingerprint: str) -> dict[str, Any]:
            own = {name: encode(getattr(one, name)) for name in sections}
            return identify(one, {"data_fingerprint": data_fingerprint, **own})

        was = known_by(decode(Config, before.config, str(folder)), before.data_fingerprint)
        now = known_by(config, self.dataset.fingerprint)
        if was != now:
            raise UserError(
                f"{folder} holds a run of other settings: {first_difference(was, now)}; "
                "remove it, or give another --runs folder"
            )

    def _require_teacher(
        self, folder: Path, student: Checkpoint, recipe: Recipe, seed: int
    ) -> None:
        """Refuse a student of another teacher than the one that is there now, if one is."""
        file = self.network_folder(recipe, seed) / MODEL_FILE
        taught_by = student.provenance.teacher
        if taught_by and file.exists() and Checkpoint.load(file).parameter_digest != taught_by:
            raise UserError(f"{folder} was taught by another teacher than {file}; remove it")

    def _untrained(self, recipe: Recipe, seed: int) -> Checkpoint:
        config, architecture = self._plan(recipe, seed)
        return Checkpoint(
            model=config.model,
            architecture=architecture,
            data=config.data,
            classes=self.dataset.classes,
            parameters=init_parameters(config.model, architecture, seed),
            provenance=Provenance(
                origin="diverged",
                environment=Environment.current(),
                config=encode(config),
                data_fingerprint=self.dataset.fingerprint,
            ),
        )


def run_experiment(
    experiment: Experiment,
    workshop: Workshop,
    seeds: Sequence[int],
    out: Path,
    *,
    only_finished: bool = False,
) -> tuple[list[Summary], Mapping[str, list[float]]]:
    """Run every row with every seed; results are written anew after each run.

    Gives the networks' summary and the searches' mean alpha per layer. With
    `only_finished` nothing is trained: rows that are not there are left out.
    """
    workshop = replace(workshop, length=experiment.length)
    networks: list[NetworkRun] = []
    searches: list[SearchRun] = []
    summaries: list[Summary] = []
    means: Mapping[str, list[float]] = {}
    images = len(workshop.dataset.test)
    for seed in seeds:
        for recipe in experiment.networks:
            if only_finished and not workshop.has_finished(recipe, seed):
                continue
            networks.append(workshop.network_run(recipe, seed))
            summaries = write_network_results(experiment, networks, images, out)
            if recipe.derivation is not None:
                found_by = recipe.derivation.search
                if not any((run.recipe, run.config.seed) == (found_by, seed) for run in searches):
                    searches.append(workshop.search_run(found_by, seed))
                write_importance(experiment, searches, out)
            jax.clear_caches()  # the next row compiles its own
        for recipe in experiment.searches:
            if only_finished and not workshop.has_searched(recipe, seed):
                continue
            searches.append(workshop.search_run(recipe, seed))
            means = write_search_results(experiment, searches, out)
            jax.clear_caches()
    return summaries, means


def _is_finished(folder: Path, artifact: str, config: Config) -> bool:
    """Whether the artifact is there and of the last epoch; each evaluation writes one."""
    rows = read_log(folder)
    return (folder / artifact).exists() and bool(rows) and rows[-1]["epoch"] == config.train.epochs

"""Where runs live, whether they are finished, and whether they can be reused.

A run's folder is named by configuration, recipe, seed and epochs, so that experiments and
pipelines share what they have in common: a teacher, a search, a baseline.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config, ModelConfig, load_config
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import (
    MODEL_FILE,
    SEARCH_FILE,
    STATE_FILE,
    Environment,
    Provenance,
    content_digest,
)
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import decode, encode
from mpcvit.data import Dataset
from mpcvit.errors import UserError
from mpcvit.experiments.catalogue import Length
from mpcvit.experiments.recipes import Derivation, Recipe, SearchRecipe
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import init_parameters
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
"""Gives the observers of the run with that name."""

Price = Callable[[ModelConfig], LatencyTable]
"""Gives the cost of each choice of a model."""

Made = TypeVar("Made")


class Status(Enum):
    """The outcome of a step."""

    RAN = "ran"
    REUSED = "reused"
    DIVERGED = "diverged"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True)
class Outcome(Generic[Made]):
    """A step's value, or the reason why there is none."""

    status: Status
    value: Made | None = None
    reason: str = ""
    seconds: float = 0.0


def reuse_or_make(
    path: Path,
    made_from: Mapping[str, Any],
    make: Callable[[], object],
    load: Callable[[Path], Made],
) -> Outcome[Made]:
    """Make a file or folder, unless it is there and was made from exactly the same.

    A mark beside it says what it was made from. The mark is written last, so that the
    result of a stopped step is made again. So is a result that `load` refuses.
    """
    mark = path.with_name(f"{path.name}.made-from")
    digest = content_digest(made_from)
    if path.exists() and mark.exists() and mark.read_text("utf-8").strip() == digest:
        try:
            return Outcome(status=Status.REUSED, value=load(path))
        except UserError:
            pass  # damaged, or of another version
    mark.unlink(missing_ok=True)
    make()
    value = load(path)
    write_text(mark, digest + "\n")
    return Outcome(status=Status.RAN, value=value)


@dataclass(frozen=True, kw_only=True)
class RunStore:
    """The runs of a configuration and its data, each trained once and resumed after a stop.

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
    start: Checkpoint | None = None  # weights that networks begin with

    def network(self, recipe: Recipe, seed: int) -> Outcome[Checkpoint]:
        """Return the trained network; train it first, and what it needs, if it is not there."""
        config, architecture = self._plan(recipe, seed)
        folder = self._folder(config, recipe.name)
        if _is_finished(folder, MODEL_FILE, config):
            checkpoint = Checkpoint.load(folder / MODEL_FILE)
            sections = () if recipe.teacher is None else ("distill",)
            self._require_same(folder, checkpoint.provenance, config, recipe, *sections)
            if checkpoint.architecture != architecture:
                raise UserError(
                    f"{folder} holds another architecture than its search now gives; remove it"
                )
            if recipe.teacher is not None:
                self._require_teacher(folder, checkpoint, recipe.teacher, seed)
            return Outcome(status=Status.REUSED, value=checkpoint)
        if (folder / DIVERGED_FILE).exists():
            reason = (folder / DIVERGED_FILE).read_text("utf-8")
            return Outcome(status=Status.DIVERGED, reason=reason)
        stage = train
        settings: dict[str, Any] = {"start": self._start_of(recipe, seed)}
        if recipe.teacher is not None:
            teacher = self.network(recipe.teacher, seed)
            if teacher.value is None:
                return teacher
            stage, settings["teacher"] = retrain, teacher.value
        try:
            with self.watch(f"{recipe.name}, seed {seed}") as observers:
                checkpoint = stage(
                    config,
                    self.dataset,
                    folder,
                    architecture=architecture,
                    resume=(folder / STATE_FILE).exists(),
                    observers=observers,
                    **settings,
                )
        except DivergedError as error:
            write_text(folder / DIVERGED_FILE, str(error))
            return Outcome(status=Status.DIVERGED, reason=str(error))
        return Outcome(status=Status.RAN, value=checkpoint)

    def search(self, recipe: SearchRecipe, seed: int) -> Outcome[SearchResult]:
        """Return what a search found; run it first if it is not there."""
        config = self._search_config(recipe, seed)
        folder = self._folder(config, recipe.name)
        if _is_finished(folder, SEARCH_FILE, config):
            result = SearchResult.load(folder)
            self._require_same(folder, result.provenance, config, recipe, "search")
            return Outcome(status=Status.REUSED, value=result)
        latency = self.price(config.model)
        with self.watch(f"{recipe.name}, seed {seed}") as observers:
            result = search(
                config,
                self.dataset,
                folder,
                latency=latency,
                start=self._start_of(recipe, seed),
                resume=(folder / STATE_FILE).exists(),
                observers=observers,
            )
        return Outcome(status=Status.RAN, value=result)

    def derive(self, derivation: Derivation, seed: int) -> Architecture:
        """Return the architecture that a derivation takes from its search."""
        result = self.search(derivation.search, seed).value
        assert result is not None  # a search ends with a result or raises
        form = derivation.mlp_form
        rule = None if form is None else MlpRule(form=form, threshold=derivation.gelu_threshold)
        if derivation.budget_s is not None:
            every = self._search_config(derivation.search, seed).derive.layer_norm_every
            return derive_by_budget(
                result, derivation.budget_s, mlp=rule, layer_norm_every=every
            ).architecture
        return derive_by_ratio(
            result, derivation.ratio, per_layer=derivation.per_layer, mlp=rule
        ).architecture

    def is_finished(self, recipe: Recipe | SearchRecipe, seed: int) -> bool:
        """Say whether a network and its search, or a search, need no more training."""
        if isinstance(recipe, SearchRecipe):
            config = self._search_config(recipe, seed)
            return _is_finished(self._folder(config, recipe.name), SEARCH_FILE, config)
        if recipe.derivation is not None and not self.is_finished(recipe.derivation.search, seed):
            return False
        config = self.network_config(recipe, seed)
        folder = self._folder(config, recipe.name)
        return _is_finished(folder, MODEL_FILE, config) or (folder / DIVERGED_FILE).exists()

    def config(self, settings: Sequence[str], heads: int, seed: int) -> Config:
        """Return the configuration with a recipe's settings; heads must divide its width."""
        changes = [*self.overrides, *settings, f"seed={seed}"]
        if heads:
            model = load_config(self.config_file, self.overrides).model.with_heads(heads)
            changes += [f"model.heads={heads}", f"model.width={model.width}"]
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

    def untrained(self, recipe: Recipe, seed: int) -> Checkpoint:
        """Return a network whose training diverged, for its cost."""
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

    def _folder(self, config: Config, name: str) -> Path:
        leaf = f"seed-{config.seed}-epochs-{config.train.epochs}"
        return self.runs / config.name / name / leaf

    def _search_config(self, recipe: SearchRecipe, seed: int) -> Config:
        config = self.config(recipe.settings, recipe.heads, seed)
        return replace(config, train=replace(config.train, epochs=config.search.epochs))

    def _plan(self, recipe: Recipe, seed: int) -> tuple[Config, Architecture]:
        """Return a network's configuration and architecture."""
        config = self.network_config(recipe, seed)
        if recipe.architecture is not None:
            return config, recipe.architecture
        if recipe.derivation is not None:
            return config, self.derive(recipe.derivation, seed)
        model = config.model
        return config, Architecture.uniform(model.attention, depth=model.depth, heads=model.heads)

    def _start_of(self, recipe: Recipe | SearchRecipe, seed: int) -> Checkpoint | None:
        """Return the weights that a training begins with, or None for fresh ones."""
        if recipe.start is None:
            return self.start
        outcome = self.network(recipe.start, seed)
        if outcome.value is None:
            raise UserError(f"{recipe.name} cannot start: {outcome.reason}")
        return outcome.value

    def _require_same(
        self,
        folder: Path,
        before: Provenance,
        config: Config,
        recipe: Recipe | SearchRecipe,
        *sections: str,
    ) -> None:
        """Refuse a run of other settings or data; `sections` are those of its stage alone."""

        def identity(config: Config, data_fingerprint: str) -> dict[str, Any]:
            stage = {name: encode(getattr(config, name)) for name in sections}
            return identify(config, {"data_fingerprint": data_fingerprint, **stage})

        was = identity(decode(Config, before.config, str(folder)), before.data_fingerprint)
        now = identity(config, self.dataset.fingerprint)
        if was != now:
            raise UserError(
                f"{folder} holds a run of other settings: {first_difference(was, now)}; "
                "remove it, or give another --runs folder"
            )
        start = self._start_of(recipe, config.seed)
        if before.started_from != ("" if start is None else start.parameter_digest):
            raise UserError(
                f"{folder} holds a run that started from other weights; "
                "remove it, or give another --runs folder"
            )

    def _require_teacher(
        self, folder: Path, student: Checkpoint, recipe: Recipe, seed: int
    ) -> None:
        """Refuse a student of another teacher than the one that is there now, if one is."""
        file = self.network_folder(recipe, seed) / MODEL_FILE
        digest = student.provenance.teacher
        if digest and file.exists() and Checkpoint.load(file).parameter_digest != digest:
            raise UserError(f"{folder} was taught by another teacher than {file}; remove it")


def _is_finished(folder: Path, artifact: str, config: Config) -> bool:
    """Say whether the artifact is there and of the last epoch; each evaluation writes one."""
    rows = read_log(folder)
    return (folder / artifact).exists() and bool(rows) and rows[-1]["epoch"] == config.train.epochs

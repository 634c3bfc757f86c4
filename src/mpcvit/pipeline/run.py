"""Runs a plan step by step: teacher, profile, search, derive, retrain, lower, measure.

Every step leaves its result in the folder of the runs, and a step whose result
is there is not done again. Stopped at any moment, the same plan goes on.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import jax

from mpcvit import __version__
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import MODEL_FILE, write_rows
from mpcvit.codec import encode, save
from mpcvit.data import sample_evenly
from mpcvit.errors import UserError
from mpcvit.experiments.recipes import HEAD_SEARCH, SOFTMAX, Recipe
from mpcvit.experiments.run import Workshop
from mpcvit.lowering.engine import DESCRIPTION
from mpcvit.lowering.lower import lower
from mpcvit.lowering.program import SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.pipeline.kept import make_once
from mpcvit.pipeline.measure import measure
from mpcvit.pipeline.plan import Plan
from mpcvit.pipeline.prices import price_once
from mpcvit.report.networks import describe_heads
from mpcvit.secure.dealing.rehearsal import with_script
from mpcvit.storage import read_json, write_text
from mpcvit.train.loop import DivergedError

CALIBRATION_IMAGES = 1024
RESULTS_FILE = "pipeline.csv"


@dataclass(frozen=True, kw_only=True)
class Done:
    """A step that was gone through, and whether its result had been there already."""

    step: str
    subject: str
    reused: bool
    seconds: float
    outcome: str


class Display(Protocol):
    """Who shows the work."""

    def begin(self, name: str) -> None: ...

    def end(self) -> None: ...

    def count(self, what: str, done: int, total: int) -> None: ...


@dataclass(kw_only=True)
class Pipeline:
    """A plan on its way; `done` grows with every step."""

    plan: Plan
    workshop: Workshop
    display: Display
    started: list[str]  # names of the trainings and searches that were begun, by the workshop
    done: list[Done] = field(default_factory=list)

    @staticmethod
    def count_steps(plan: Plan) -> int:
        """Profile and search, a derivation for each found network; train, lower, measure twice."""
        return 2 + len(plan.found) + 4 * len(plan.networks)

    @property
    def folder(self) -> Path:
        return self.workshop.runs / self.plan.config.name

    def run(self) -> None:
        self._train(SOFTMAX)
        table = self._price()
        self.workshop = replace(self.workshop, price=lambda model: table)
        self._search()
        for recipe in self.plan.found:
            self._derive(recipe)
        trained = [SOFTMAX]
        for recipe in self.plan.networks[1:]:
            if self._train(recipe):
                trained.append(recipe)
        lowered = [recipe for recipe in trained if self._lower(recipe)]
        rows = []
        for recipe in trained:
            for form in ("plain", "lowered") if recipe in lowered else ("plain",):
                rows.append(self._measure(recipe, form))
                write_rows(self.folder / RESULTS_FILE, rows)

    def run_folder(self, recipe: Recipe) -> Path:
        return self.workshop.network_folder(recipe, self.plan.config.seed)

    def _train(self, recipe: Recipe) -> bool:
        """Whether there is a network now; a training may diverge."""

        def work() -> tuple[bool, str]:
            before = len(self.started)
            try:
                checkpoint = self.workshop.network(recipe, self.plan.config.seed)
            except DivergedError as error:
                return False, f"diverged: {error}"
            top1 = checkpoint.provenance.metrics["test_top1"]
            jax.clear_caches()  # the next network compiles its own
            return len(self.started) == before, f"{100 * top1:.2f} % top-1"

        step = "retrain" if recipe.derivation else "train" if recipe is not SOFTMAX else "teacher"
        return not self._do(step, recipe.name, work).outcome.startswith("diverged")

    def _price(self) -> LatencyTable:
        plan, path = self.plan, self.folder / "latency.json"

        def work() -> tuple[bool, str]:
            model, profile, count = plan.config.model, plan.profile, self.display.count
            reused = price_once(path, model, profile, plan.kinds, count)
            return reused, LatencyTable.load(path).source.partition(":")[0]

        self._do("profile", plan.profile.protocol.name, work)
        return LatencyTable.load(path)

    def _search(self) -> None:
        def work() -> tuple[bool, str]:
            before = len(self.started)
            result = self.workshop.search(HEAD_SEARCH, self.plan.config.seed)
            values = [value for heads in result.alpha for rows in heads for value in rows]
            jax.clear_caches()
            mean = sum(values) / len(values)
            return len(self.started) == before, f"mean alpha {mean:.3f}"

        self._do("search", HEAD_SEARCH.name, work)

    def _derive(self, recipe: Recipe) -> None:
        path = self.folder / "architectures" / f"{recipe.name}.json"

        def work() -> tuple[bool, str]:
            assert recipe.derivation is not None
            architecture = self.workshop.derive(recipe.derivation, self.plan.config.seed)
            reused = path.exists() and path.read_text("utf-8") == architecture.to_json()
            architecture.save(path)
            return reused, describe_heads(architecture)

        self._do("derive", recipe.name, work)

    def _lower(self, recipe: Recipe) -> bool:
        """Whether there is a program now; not every attention kind can be lowered."""
        path = self._program(recipe)

        def make() -> None:
            checkpoint = Checkpoint.load(self.run_folder(recipe) / MODEL_FILE)
            images = sample_evenly(self.workshop.dataset.train, CALIBRATION_IMAGES)
            profile, count = self.plan.profile, self.display.count
            program = lower(checkpoint, images, profile, progress=count)
            with_script(program, profile, progress=count).save(path)
            jax.clear_caches()

        def work() -> tuple[bool, str]:
            try:
                made_from = self._made_from(recipe)
                return make_once(path, made_from, make, SecureProgram.load), str(path)
            except UserError as error:
                return False, f"left out: {error}"

        return not self._do("lower", recipe.name, work).outcome.startswith("left out")

    def _measure(self, recipe: Recipe, form: str) -> dict[str, Any]:
        """A row of the results; the record lies beside the network."""
        folder = self.run_folder(recipe)
        path, lowered = folder / f"measured-{form}.json", form == "lowered"

        def make() -> None:
            checkpoint = Checkpoint.load(folder / MODEL_FILE)
            model = SecureProgram.load(self._program(recipe)) if lowered else checkpoint
            found = measure(
                model,
                checkpoint,
                self.workshop.dataset.test,
                self.plan.profile,
                images=self.plan.images,
                simulate=self.plan.simulate,
                progress=self.display.count,
            )
            save(folder / f"record-{form}.json", found.record)
            write_text(path, json.dumps(found.row, indent=1) + "\n")
            jax.clear_caches()

        def work() -> tuple[bool, str]:
            made_from = {
                **self._made_from(recipe),
                "images": self.plan.images,
                "simulate": self.plan.simulate,
                "program": _digest(self._program(recipe) / DESCRIPTION) if lowered else "",
            }
            reused = make_once(path, made_from, make)
            row = read_json(path.read_text("utf-8"), str(path))
            seconds = row["measured_s"] or row["modelled_s"]
            kind = "measured" if row["measured_s"] else "modelled"
            shown = f", {seconds:.2f} s {kind}" if seconds else ""
            return reused, f"{row['exchanges']:,} exchanges, {row['sent_mb']:.1f} MB{shown}"

        self._do("measure", f"{recipe.name}, {form}", work)
        row = read_json(path.read_text("utf-8"), str(path))
        config = self.plan.config
        return {"network": recipe.name, "config": config.name, "seed": config.seed, **row}

    def _program(self, recipe: Recipe) -> Path:
        return self.run_folder(recipe) / "program"

    def _made_from(self, recipe: Recipe) -> dict[str, Any]:
        return {
            "model": _digest(self.run_folder(recipe) / MODEL_FILE),
            "profile": encode(self.plan.profile),
            "version": __version__,
        }

    def _do(self, step: str, subject: str, work: Callable[[], tuple[bool, str]]) -> Done:
        self.display.begin(f"{step} {subject}")
        started = time.perf_counter()
        reused, outcome = work()
        done = Done(
            step=step,
            subject=subject,
            reused=reused,
            seconds=round(time.perf_counter() - started, 1),
            outcome=outcome,
        )
        self.done.append(done)
        self.display.end()
        return done


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

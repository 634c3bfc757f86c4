"""Runs a plan step by step: teacher, profile, search, derive, retrain, lower, measure.

Every step stores its result in the folder of the runs, and a stored result is reused. If the
pipeline is stopped, the same plan continues where it stopped.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import jax

from mpcvit import __version__
from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import MODEL_FILE, write_rows
from mpcvit.codec import encode
from mpcvit.data import sample_evenly
from mpcvit.errors import UserError
from mpcvit.experiments.recipes import Recipe
from mpcvit.experiments.store import Outcome, RunStore, Status, reuse_or_make
from mpcvit.lowering import Guard
from mpcvit.lowering.program import SecureProgram
from mpcvit.make_program import lower
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.pipeline.measure import Measurement, digest_of, measure, measure_once
from mpcvit.pipeline.plan import Plan
from mpcvit.pipeline.prices import price_once
from mpcvit.report.live import WholeProgress
from mpcvit.report.networks import describe_heads

CALIBRATION_IMAGES = 1024
RESULTS_FILE = "pipeline.csv"
_ABSENT = {Status.DIVERGED: "diverged", Status.SKIPPED: "left out"}

Made = TypeVar("Made")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of a plan, what became of it, and its result in words."""

    name: str
    subject: str
    outcome: Outcome[Any]
    words: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.name,
            "subject": self.subject,
            "reused": self.outcome.status is Status.REUSED,
            "seconds": self.outcome.seconds,
            "outcome": self.words,
        }


@dataclass(kw_only=True)
class Pipeline:
    """A plan and the steps of it that are done."""

    plan: Plan
    store: RunStore
    display: WholeProgress
    done: list[Step] = field(default_factory=list)

    @staticmethod
    def count_steps(plan: Plan) -> int:
        """Count profile, search, a derivation for each found network; train, lower, measure."""
        forms = 2 if plan.start is None else 1
        return 2 + len(plan.found) + (2 + forms) * len(plan.networks)

    @property
    def folder(self) -> Path:
        return self.store.runs / self.plan.config.name

    def run(self) -> None:
        """Do every step, and write the results after each measurement."""
        teacher, others = self.plan.networks[0], self.plan.networks[1:]
        if self._train(teacher) is None:
            raise UserError(
                f"{self.done[-1].words}; remove {self.run_folder(teacher)} and try again"
            )
        lowered: dict[str, bool] = {}
        program = None
        if self.plan.start is not None:
            program = self._lower(teacher)
            lowered[teacher.name] = program is not None
        table = self._profile(program)
        self.plan.refuse_budgets(table)
        self.store = replace(self.store, price=lambda model: table)
        search = self.plan.search
        self._do(
            "search",
            search.name,
            lambda: self.store.search(search, self.plan.config.seed),
            lambda result: f"mean alpha {_mean(result.alpha):.3f}",
        )
        for recipe in self.plan.found:
            self._do("derive", recipe.name, partial(self._derive, recipe), partial(_price, table))
        trained = [teacher, *(recipe for recipe in others if self._train(recipe))]
        for recipe in trained:
            if recipe.name not in lowered:
                lowered[recipe.name] = self._lower(recipe) is not None
        rows = []
        for recipe in trained:
            for form in self._forms(lowered[recipe.name]):
                rows.append(self._measure(recipe, form))
                write_rows(self.folder / RESULTS_FILE, rows)

    def _forms(self, is_lowered: bool) -> tuple[str, ...]:
        """Return the forms of a network to measure; a user's own is served lowered."""
        if not is_lowered:
            return ("plain",)
        return ("plain", "lowered") if self.plan.start is None else ("lowered",)

    def _profile(self, program: SecureProgram | None) -> LatencyTable:
        table = self._do(
            "profile",
            self.plan.profile.protocol.name,
            lambda: price_once(
                self.folder / "latency.json",
                self.plan.config.model,
                self.plan.profile,
                self.plan.kinds,
                self.display.count,
                program,
                self.plan.forms,
            ),
            lambda table: table.source.partition(":")[0],
        )
        assert table is not None
        return table

    def run_folder(self, recipe: Recipe) -> Path:
        return self.store.network_folder(recipe, self.plan.config.seed)

    def _train(self, recipe: Recipe) -> Checkpoint | None:
        """Return the trained network, or None if its training diverged."""
        step = "retrain" if recipe.derivation else "train"
        if recipe == self.plan.teacher:
            step = "teacher" if self.plan.start is None else "fine-tune"
        return self._do(
            step,
            recipe.name,
            lambda: self.store.network(recipe, self.plan.config.seed),
            lambda checkpoint: f"{100 * (checkpoint.provenance.top1 or 0.0):.2f} % top-1",
        )

    def _derive(self, recipe: Recipe) -> Outcome[Architecture]:
        assert recipe.derivation is not None
        path = self.folder / "architectures" / f"{recipe.name}.json"
        architecture = self.store.derive(recipe.derivation, self.plan.config.seed)
        reused = path.exists() and path.read_text("utf-8") == architecture.to_json()
        architecture.save(path)
        return Outcome(status=Status.REUSED if reused else Status.RAN, value=architecture)

    def _lower(self, recipe: Recipe) -> SecureProgram | None:
        """Return the program, or None if an attention kind of the network cannot be lowered."""
        path = self._program(recipe)

        def make() -> None:
            checkpoint = Checkpoint.load(self.run_folder(recipe) / MODEL_FILE)
            images = sample_evenly(self.store.dataset.train, CALIBRATION_IMAGES)
            profile, count = self.plan.profile, self.display.count
            lower(checkpoint, images, profile, guard=Guard.ON, progress=count).save(path)

        def work() -> Outcome[SecureProgram]:
            try:
                return reuse_or_make(path, self._made_from(recipe), make, SecureProgram.load)
            except UserError as error:
                return Outcome(status=Status.SKIPPED, reason=str(error))

        return self._do("lower", recipe.name, work, lambda program: str(path))

    def _measure(self, recipe: Recipe, form: str) -> dict[str, Any]:
        """Return a row of the results; the record is stored beside the network."""
        folder, lowered = self.run_folder(recipe), form == "lowered"

        def make() -> Measurement:
            checkpoint = Checkpoint.load(folder / MODEL_FILE)
            model = SecureProgram.load(self._program(recipe)) if lowered else checkpoint
            return measure(
                model,
                checkpoint,
                self.store.dataset.judging,
                self.plan.profile,
                images=self.plan.images,
                simulate=self.plan.simulate,
                progress=self.display.count,
            )

        made_from = {
            **self._made_from(recipe),
            "images": self.plan.images,
            "simulate": self.plan.simulate,
            "program": digest_of(self._program(recipe)) if lowered else "",
        }
        measurement = self._do(
            "measure",
            f"{recipe.name}, {form}",
            lambda: measure_once(folder, form, made_from, make),
            lambda measurement: measurement.words,
        )
        assert measurement is not None
        config = self.plan.config
        known = {"network": recipe.name, "config": config.name, "seed": config.seed}
        return {**known, **measurement.row}

    def _program(self, recipe: Recipe) -> Path:
        return self.run_folder(recipe) / "program"

    def _made_from(self, recipe: Recipe) -> dict[str, Any]:
        return {
            "model": digest_of(self.run_folder(recipe) / MODEL_FILE),
            "profile": encode(self.plan.profile),
            "version": __version__,
        }

    def _do(
        self,
        name: str,
        subject: str,
        work: Callable[[], Outcome[Made]],
        describe: Callable[[Made], str],
    ) -> Made | None:
        self.display.begin(f"{name} {subject}")
        started = time.perf_counter()
        outcome = work()
        outcome = replace(outcome, seconds=round(time.perf_counter() - started, 1))
        words = f"{_ABSENT.get(outcome.status)}: {outcome.reason}"
        if outcome.value is not None:
            words = describe(outcome.value)
        self.done.append(Step(name=name, subject=subject, outcome=outcome, words=words))
        jax.clear_caches()  # the next step compiles its own
        self.display.end()
        return outcome.value


def _price(table: LatencyTable, architecture: Architecture) -> str:
    return f"{describe_heads(architecture)}: {table.seconds(table.price(architecture)):.2f} s"


def _mean(alpha: Any) -> float:
    values = [value for heads in alpha for rows in heads for value in rows]
    return sum(values) / len(values)

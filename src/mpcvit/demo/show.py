"""A showcase's networks classify its images privately, each as it was trained and lowered."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpcvit import __version__
from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.provenance import write_rows
from mpcvit.artifacts.record import RunRecord
from mpcvit.codec import encode
from mpcvit.demo.showcase import Sample, Showcase, ShownNetwork, model_in
from mpcvit.errors import UserError
from mpcvit.experiments.store import Status
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.pipeline.measure import Display, Measurement, digest_of, judge, measure_once
from mpcvit.secure.run import run, with_engine_of

RESULTS_FILE = "demo.csv"
PREDICTIONS_FILE = "predictions.csv"
FORMS = ("plain", "lowered")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A network in one form: its predictions, and their cost."""

    network: str
    predictions: tuple[str, ...]
    record: RunRecord
    row: dict[str, Any]
    reused: bool

    @property
    def title(self) -> str:
        return f"{self.network}, {self.record.form}"


def show(
    showcase: Showcase, source: Path, out: Path, samples: Sequence[Sample], display: Display
) -> list[Shown]:
    """Run every network in every form over the images at a time, unless that is stored.

    `out` becomes a folder of runs: a copy of the showcase, with a record beside
    each network, and the rows of the results.
    """
    try:
        shutil.copytree(source, out, copy_function=shutil.copyfile, dirs_exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror or error}") from error
    found: list[Shown] = []
    for network in showcase.networks:
        for form in FORMS:
            display.begin(f"{network.name}, {form}")
            found.append(_run(network, form, showcase, out, samples, display))
            display.end()
            write_rows(out / RESULTS_FILE, [one.row for one in found])
            write_rows(out / PREDICTIONS_FILE, _predictions(samples, found))
    return found


def _run(
    network: ShownNetwork,
    form: str,
    showcase: Showcase,
    folder: Path,
    samples: Sequence[Sample],
    display: Display,
) -> Shown:
    model = model_in(folder, network.name, form)
    profile = with_engine_of(model, load_profile(showcase.profile))
    pictures = [folder / sample.file for sample in samples]

    def make() -> Measurement:
        result = run(model, pictures, profile, batch_size=len(pictures), progress=display.count)
        checkpoint = Checkpoint.load(model_in(folder, network.name, "plain"))
        truths = np.array([result.classes.index(sample.truth) for sample in samples])
        return judge(
            result, profile, checkpoint, list(pictures), labels=truths, top1=network.top1[form]
        )

    made_from = {
        "model": digest_of(model),
        "profile": encode(profile),
        "images": [sample.file for sample in samples],
        "version": __version__,
    }
    outcome = measure_once(folder / network.name, form, made_from, make)
    assert outcome.value is not None
    known = {"network": network.name, "config": network.config, "seed": network.seed}
    return Shown(
        network=network.name,
        predictions=outcome.value.predictions,
        record=outcome.value.record,
        row={**known, **outcome.value.row},
        reused=outcome.status is Status.REUSED,
    )


def _predictions(samples: Sequence[Sample], found: Sequence[Shown]) -> list[dict[str, str]]:
    return [
        {
            "image": sample.file,
            "truth": sample.truth,
            **{one.title: one.predictions[place] for one in found},
        }
        for place, sample in enumerate(samples)
    ]


def who_learnt(profile: Profile) -> dict[str, str]:
    """Return what each process learnt and did not, and who must be trusted."""
    learnt = {
        "model's side": profile.warning or "how many images came; no pixel, no class",
        "images' side": "the class of each image, and the network's shape; no logit, no weight",
    }
    if profile.dealer is Dealer.THIRD_PARTY:
        learnt["dealer"] = "the sizes of the operations; no pixel, no weight, no result"
    return {**learnt, "trusted": profile.trust}

"""A showcase's networks classify its images privately, each as it was trained and lowered."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.provenance import write_rows
from mpcvit.artifacts.record import RunRecord
from mpcvit.classifier import Classifier
from mpcvit.codec import save
from mpcvit.demo.showcase import Sample, Showcase, ShownNetwork, model_in
from mpcvit.errors import UserError
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.pipeline.measure import make_row
from mpcvit.secure.run import run, with_engine_of

RESULTS_FILE = "demo.csv"
PREDICTIONS_FILE = "predictions.csv"
FORMS = ("plain", "lowered")


class Display(Protocol):
    """Who shows the work."""

    def begin(self, name: str) -> None: ...

    def end(self) -> None: ...

    def count(self, what: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One network in one form: what it said of the images, and what that cost."""

    network: str
    predictions: tuple[str, ...]
    record: RunRecord
    row: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.network}, {self.record.form}"


def show(
    showcase: Showcase, source: Path, out: Path, samples: Sequence[Sample], display: Display
) -> list[Shown]:
    """Run every network in every form over the images at a time.

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
    result = run(model, pictures, profile, batch_size=len(pictures), progress=display.count)
    classifier = Classifier(Checkpoint.load(model_in(folder, network.name, "plain")))
    measured = make_row(
        result,
        profile,
        plain=classifier(classifier.preprocess(pictures)).argmax(axis=1),
        labels=np.array([result.classes.index(sample.truth) for sample in samples]),
        top1=network.top1[form],
    )
    save(folder / network.name / f"record-{form}.json", result.record)
    return Shown(
        network=network.name,
        predictions=tuple(", ".join(names) or "no answer" for names in result.likeliest),
        record=result.record,
        row={"network": network.name, "config": network.config, "seed": network.seed, **measured},
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
    """What each process learnt and did not, and what that rests on."""
    told = {
        "model's side": profile.warning or "how many images came; no pixel, no class",
        "images' side": "the class of each image, and the network's shape; no logit, no weight",
    }
    if profile.dealer is Dealer.THIRD_PARTY:
        told["dealer"] = "the sizes of the operations; no pixel, no weight, no result"
    return {**told, "trusted": profile.trust}

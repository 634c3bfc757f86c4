"""`mpcvit ship`: from run folders to a showcase."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from PIL import Image

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import LOG_FILE, MODEL_FILE, SEARCH_FILE, Environment
from mpcvit.artifacts.search import SearchResult
from mpcvit.data import Split, spread
from mpcvit.demo.showcase import PROGRAM_FOLDER, Sample, Showcase, ShownNetwork
from mpcvit.errors import UserError
from mpcvit.lowering import Guard
from mpcvit.lowering.emulate import emulate
from mpcvit.lowering.lower import lower
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.secure.guarding import with_guard
from mpcvit.storage import replacing_folder

Progress = Callable[[str, int, int], None]

CALIBRATION_IMAGES = 1024


def ship(
    runs: Mapping[str, Path],
    train: Split,
    test: Split,
    out: Path,
    *,
    profile: str,
    samples: int,
    search: Path | None = None,
    progress: Progress,
) -> Showcase:
    """Pack networks under their names: as they were trained, lowered, and how well both do."""
    load_profile(profile)  # refused before anything is made
    with replacing_folder(out) as folder:
        checkpoints = {name: _load(run) for name, run in runs.items()}
        first = next(iter(checkpoints.values()))
        if any(
            (own.classes, own.data) != (first.classes, first.data) for own in checkpoints.values()
        ):
            raise UserError(
                "the networks were trained on different data, or prepare it differently"
            )
        for name, run in runs.items():
            _copy_log(run, folder / name)
            checkpoints[name].save(folder / name / MODEL_FILE)
        if search is not None:
            _copy_log(search, folder / "search")
            found = SearchResult.load(search / SEARCH_FILE)
            found = replace(found, provenance=found.provenance.without_paths())
            found.save(folder / "search" / SEARCH_FILE)
        networks = tuple(
            _lower(name, checkpoint, train, test, folder, profile, progress)
            for name, checkpoint in checkpoints.items()
        )
        showcase = Showcase(
            profile=profile,
            networks=networks,
            samples=_save_samples(test, first.classes, samples, folder),
            test_images=len(test),
            data_fingerprint=first.provenance.data_fingerprint,
            environment=Environment.here(),
            digests={},
        )
        showcase.seal(folder)
    return Showcase.load(out)


def _lower(
    name: str,
    checkpoint: Checkpoint,
    train: Split,
    test: Split,
    folder: Path,
    profile: str,
    progress: Progress,
) -> ShownNetwork:
    def own(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    program = lower(checkpoint, spread(train, CALIBRATION_IMAGES), profile, progress=own)
    program, _ = with_guard(program, load_profile(profile), Guard.AUTO, own)
    program.save(folder / name / PROGRAM_FOLDER)
    emulation = emulate(
        program,
        test,
        batch_size=256,
        progress=lambda done, total: own("evaluating", done, total),
    )
    provenance = checkpoint.provenance
    return ShownNetwork(
        name=name,
        origin=provenance.origin,
        config=provenance.config["name"],
        seed=provenance.config["seed"],
        epochs=provenance.config["train"]["epochs"],
        parameters=checkpoint.parameter_count,
        commit=provenance.environment.commit,
        top1={
            "plain": provenance.metrics["test_top1"],
            "lowered": round(emulation.evaluation.top1, 6),
        },
    )


def _save_samples(
    test: Split, classes: tuple[str, ...], count: int, folder: Path
) -> tuple[Sample, ...]:
    """The first test image of each class, in the order of the test split; nothing is chosen."""
    first: dict[int, int] = {}
    for place, label in enumerate(test.labels):
        first.setdefault(int(label), place)
    (folder / "images").mkdir()
    samples = []
    for label, place in list(first.items())[:count]:
        name = f"images/{place:04d}-{classes[label]}.png"
        Image.fromarray(test.images[place].squeeze()).save(folder / name)
        samples.append(Sample(file=name, place=place, truth=classes[label]))
    return tuple(samples)


def _load(run: Path) -> Checkpoint:
    checkpoint = Checkpoint.load(run / MODEL_FILE)
    return replace(checkpoint, provenance=checkpoint.provenance.without_paths())


def _copy_log(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    if not (source / LOG_FILE).is_file():
        raise UserError(f"{source} is no run folder: it has no {LOG_FILE}")
    shutil.copyfile(source / LOG_FILE, target / LOG_FILE)

"""Make the folder that `mpcvit demo` shows, from run folders.

    python tools/make_showcase.py RUN... --names NAME,... --data DIR --out src/mpcvit/demo/shipped

Each network is lowered with training images, and its program is evaluated on the whole test
split. The samples are the first test image of each class. CONTRIBUTING.md has an example.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import LOG_FILE, MODEL_FILE, SEARCH_FILE, Environment
from mpcvit.artifacts.search import SearchResult
from mpcvit.cli.running import load_test_images, load_training_images
from mpcvit.cores import split_cpu
from mpcvit.data import Split, sample_evenly
from mpcvit.demo.showcase import PROGRAM_FOLDER, Sample, Showcase, ShownNetwork
from mpcvit.errors import UserError
from mpcvit.lowering.emulate import emulate
from mpcvit.make_program import lower
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.report.live import counting
from mpcvit.storage import replacing_folder

Progress = Callable[[str, int, int], None]

CALIBRATION_IMAGES = 1024
SHIPPED_PROFILE = "semi2k-dealer-wan"


def make_showcase(
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
    """Pack networks by name: checkpoints, programs, logs, samples, and both accuracies."""
    load_profile(profile)  # refused before anything is made
    with replacing_folder(out) as folder:
        checkpoints = {name: Checkpoint.load(run / MODEL_FILE) for name, run in runs.items()}
        first = next(iter(checkpoints.values()))
        if any(
            (other.classes, other.data) != (first.classes, first.data)
            for other in checkpoints.values()
        ):
            raise UserError(
                "the networks were trained on different data, or prepare it differently"
            )
        for name, run in runs.items():
            _copy_log(run, folder / name)
            checkpoints[name].save(folder / name / MODEL_FILE)
        if search is not None:
            _copy_log(search, folder / "search")
            SearchResult.load(search / SEARCH_FILE).save(folder / "search" / SEARCH_FILE)
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
            environment=Environment.current(),
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
    def show(what: str, done: int, total: int) -> None:
        progress(f"{name}: {what}", done, total)

    program = lower(checkpoint, sample_evenly(train, CALIBRATION_IMAGES), profile, progress=show)
    program = program.changed(scripts={})  # they hold for one version of the package alone
    program.save(folder / name / PROGRAM_FOLDER)
    emulation = emulate(
        program,
        test,
        batch_size=256,
        progress=lambda done, total: show("evaluating", done, total),
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
    """Save the first test image of each class, in the order of the test split."""
    first: dict[int, int] = {}
    for index, label in enumerate(test.labels):
        first.setdefault(int(label), index)
    (folder / "images").mkdir()
    samples = []
    for label, index in list(first.items())[:count]:
        name = f"images/{index:04d}-{classes[label]}.png"
        Image.fromarray(test.images[index].squeeze()).save(folder / name)
        samples.append(Sample(file=name, place=index, truth=classes[label]))
    return tuple(samples)


def _copy_log(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    if not (source / LOG_FILE).is_file():
        raise UserError(f"{source} is not a run folder: it has no {LOG_FILE}")
    shutil.copyfile(source / LOG_FILE, target / LOG_FILE)


def main(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders; speed-ups are relative to the first."),
    ],
    names: Annotated[str, typer.Option(help="Names of the networks, between commas.")],
    out: Annotated[Path, typer.Option(help="Folder of the showcase; it is replaced.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the data set.")] = None,
    search: Annotated[
        Path | None, typer.Option(help="Run folder of the search that found the networks.")
    ] = None,
    profile: Annotated[str, typer.Option(help="Profile to lower for.")] = SHIPPED_PROFILE,
    samples: Annotated[int, typer.Option(min=1, help="Number of sample images.")] = 10,
) -> None:
    """Pack trained networks, their programs and sample images for `mpcvit demo`."""
    called = [name.strip() for name in names.split(",")]
    if len(set(called)) != len(runs):
        raise typer.BadParameter(f"{len(runs)} runs need as many different names, not {names!r}")
    split_cpu(256)
    first = Checkpoint.load(runs[0] / MODEL_FILE)
    with counting() as progress:
        showcase = make_showcase(
            dict(zip(called, runs, strict=True)),
            load_training_images(first, data, progress),
            load_test_images(first, data, progress),
            out,
            profile=profile,
            samples=samples,
            search=search,
            progress=progress,
        )
    for network in showcase.networks:
        forms = ", ".join(f"{form} {100 * top1:.2f} %" for form, top1 in network.top1.items())
        print(f"{network.name:<10} {forms} of {showcase.test_images:,} test images")
    print(f"showcase   {out}")


if __name__ == "__main__":
    typer.run(main)

"""Make the folder that `mpcvit demo` shows, from run folders.

    python tools/make_showcase.py RUN... --names NAME,... --data DIR --out src/mpcvit/demo/shipped

Each network is lowered with training images, and its program is evaluated on the whole test
split. The samples are the first test image of each class. CONTRIBUTING.md has an example.
"""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import LOG_FILE, MODEL_FILE, SEARCH_FILE, Environment
from mpcvit.artifacts.search import SearchResult
from mpcvit.cli.running import load_images
from mpcvit.cores import split_cpu
from mpcvit.data import Split, sample_evenly
from mpcvit.demo.showcase import PROGRAM_FOLDER, Column, Sample, Showcase, ShownNetwork
from mpcvit.errors import UserError
from mpcvit.lowering.emulate import emulate
from mpcvit.make_program import lower
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.report.live import counting
from mpcvit.storage import replacing_folder
from mpcvit.train.evaluate import evaluate_checkpoint

Progress = Callable[[str, int, int], None]

CALIBRATION_IMAGES = 1024
_BATCH_SIZE = 256
SHIPPED_PROFILE = "semi2k-dealer-wan"


def make_showcase(
    runs: Mapping[str, Path],
    train: Split,
    test: Split,
    out: Path,
    *,
    profile: str,
    samples: int,
    columns: tuple[Column, ...] = (),
    search: Path | None = None,
    progress: Progress,
) -> Showcase:
    """Pack networks by name: checkpoints, programs, logs, samples, and both accuracies."""
    columns = columns or default_columns(list(runs))
    load_profile(profile)  # refused before anything is made
    with replacing_folder(out) as folder:
        checkpoints = {name: Checkpoint.load(run / MODEL_FILE) for name, run in runs.items()}
        first = next(iter(checkpoints.values()))
        if any(_prepared(other) != _prepared(first) for other in checkpoints.values()):
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
            columns=columns,
            samples=_save_samples(test, first.classes, samples, folder),
            test_images=len(test),
            data_fingerprint=first.provenance.data_fingerprint,
            environment=Environment.current(),
            digests={},
        )
        showcase.seal(folder)
    return Showcase.load(out)


def default_columns(names: Sequence[str]) -> tuple[Column, ...]:
    """Return the first network as it was trained, on one image, and the others lowered."""
    first, *others = names
    lowered = (Column(network=name, form="lowered") for name in others or [first])
    return (Column(network=first, form="plain", images=1), *lowered)


def parse_columns(text: str) -> tuple[Column, ...]:
    """Read columns such as `softmax:plain:1,mpcvit:lowered`: network, form, images at most."""
    found = []
    for part in text.split(","):
        match = re.fullmatch(r"([^:]+):(plain|lowered)(?::([1-9]\d*))?", part.strip())
        if match is None:
            raise typer.BadParameter(f"{part!r} is not NETWORK:plain|lowered[:IMAGES]")
        network, form, images = match.groups()
        found.append(Column(network=network, form=form, images=int(images) if images else None))
    return tuple(found)


def _prepared(checkpoint: Checkpoint) -> object:
    """Return the classes and how pictures are prepared; a split apart makes no difference."""
    return checkpoint.classes, replace(checkpoint.data, validation_images=0)


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
    emulation = emulate(program, test, progress=show)
    provenance = checkpoint.provenance
    return ShownNetwork(
        name=name,
        origin=provenance.origin + ", from other weights" * bool(provenance.started_from),
        config=provenance.config["name"],
        seed=provenance.config["seed"],
        epochs=provenance.config["train"]["epochs"],
        parameters=checkpoint.parameter_count,
        commit=provenance.environment.commit,
        top1={
            # networks with a validation split have not met the test images before
            "plain": provenance.metrics.get("test_top1")
            or evaluate_checkpoint(checkpoint, test, _BATCH_SIZE).top1,
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
    columns: Annotated[
        str,
        typer.Option(
            help="What the demo shows, such as softmax:plain:1,mpcvit:lowered. The default is the "
            "first network as it was trained, on one image, and the others lowered."
        ),
    ] = "",
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
    split_cpu(_BATCH_SIZE)
    first = Checkpoint.load(runs[0] / MODEL_FILE)
    with counting() as progress:
        showcase = make_showcase(
            dict(zip(called, runs, strict=True)),
            load_images(first, data, "train", progress),
            load_images(first, data, "test", progress),
            out,
            profile=profile,
            samples=samples,
            columns=parse_columns(columns) if columns else (),
            search=search,
            progress=progress,
        )
    for network in showcase.networks:
        forms = ", ".join(f"{form} {100 * top1:.2f} %" for form, top1 in network.top1.items())
        print(f"{network.name:<10} {forms} of {showcase.test_images:,} test images")
    print(f"showcase   {out}")


if __name__ == "__main__":
    typer.run(main)

"""What every command that trains shares: its run folder, its data and its progress."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import MODEL_FILE, SEARCH_FILE, STATE_FILE
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.data import Dataset, Split
    from mpcvit.data.dataset import SplitName
    from mpcvit.lowering.program import Model

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder; runs/NAME unless given."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the run folder's last saved state.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start again, replacing an earlier run.")]

Outcome = TypeVar("Outcome")


def choose(folder: Path, *, resume: bool, fresh: bool) -> None:
    """Neither lose a run that is there nor resume one that is not."""
    if resume and fresh:
        raise UserError("--resume and --fresh exclude each other")
    if resume and not (folder / STATE_FILE).exists():
        raise UserError(f"there is nothing to resume in {folder}")
    held = any((folder / name).exists() for name in (STATE_FILE, MODEL_FILE, SEARCH_FILE))
    if held and not (resume or fresh):
        raise UserError(f"{folder} already holds a run; add --resume, --fresh or another --out")


def load_data(config: Config) -> "Dataset":
    """The configuration's data set, with its loading shown."""
    from mpcvit.data import load_dataset
    from mpcvit.report.live import counting

    with counting() as progress:
        return load_dataset(
            config.data,
            image_size=config.model.image_size,
            channels=config.model.channels,
            classes=config.model.classes,
            progress=progress,
        )


def load_test_images(
    model: "Model", data: Path | None, progress: Callable[[str, int, int], None]
) -> "Split":
    """The test images of the data set that a model was trained on, or of another folder."""
    return _load_images(model, data, "test", progress)


def load_training_images(
    model: "Model", data: Path | None, progress: Callable[[str, int, int], None]
) -> "Split":
    """Likewise its training images."""
    return _load_images(model, data, "train", progress)


def _load_images(
    model: "Model",
    data: Path | None,
    which: "SplitName",
    progress: Callable[[str, int, int], None],
) -> "Split":
    from mpcvit.artifacts.config import DataSource
    from mpcvit.data import load_split

    config, settings = model.model, model.data
    if data is not None:
        settings = replace(settings, source=DataSource.AUTO, path=str(data))
    return load_split(
        settings,
        which,
        image_size=config.image_size,
        channels=config.channels,
        classes=config.classes,
        progress=progress,
    )


def carry_out(
    stage: Callable[..., Outcome],
    config: Config,
    folder: Path,
    **settings: Any,
) -> Outcome:
    """Load the data and run a stage with its progress shown."""
    from mpcvit.report.live import LiveProgress, console
    from mpcvit.report.runs import FigureWriter
    from mpcvit.train.devices import join_hosts
    from mpcvit.train.loop import StoppedError

    join_hosts(config.distributed)
    dataset = load_data(config)
    try:
        with LiveProgress() as live:
            return stage(config, dataset, folder, observers=(live, FigureWriter()), **settings)
    except StoppedError as stopped:
        console.print(f"{stopped}; add --resume to go on", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None

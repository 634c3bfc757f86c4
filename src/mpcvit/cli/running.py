"""What commands that run for long share: run folders, data, progress, and how they end."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import MODEL_FILE, SEARCH_FILE, STATE_FILE
from mpcvit.cli import complete
from mpcvit.errors import UserError, needs_extra
from mpcvit.progress import Progress

if TYPE_CHECKING:
    from mpcvit.artifacts.architecture import Architecture
    from mpcvit.data import Dataset, Split
    from mpcvit.data.dataset import SplitName
    from mpcvit.lowering.program import Model
    from mpcvit.model.checkpoint import Checkpoint

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="Run folder; runs/NAME unless given.", autocompletion=complete.run_folder
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last saved state in the run folder.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start again, replacing an earlier run.")]

Outcome = TypeVar("Outcome")


def check_run_folder(folder: Path, *, resume: bool, fresh: bool) -> None:
    """Refuse to replace a run that is there, and to resume one that is not."""
    if resume and fresh:
        raise UserError("--resume and --fresh exclude each other")
    if resume and not (folder / STATE_FILE).exists():
        raise UserError(f"there is nothing to resume in {folder}; leave out --resume")
    held = any((folder / name).exists() for name in (STATE_FILE, MODEL_FILE, SEARCH_FILE))
    if held and not (resume or fresh):
        raise UserError(f"{folder} already holds a run; add --resume, --fresh or another --out")


def load_data(config: Config) -> "Dataset":
    """Load the data set of a configuration, and show progress."""
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


def load_images(
    model: "Model", data: Path | None, which: "SplitName", progress: Progress
) -> "Split":
    """Load images of a model's data set, or of another folder.

    The classes of test images are matched with the model's by name.
    """
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
        classes=model.classes if which == "test" else config.classes,
        progress=progress,
    )


def require_training_packages() -> None:
    """Refuse to train without the extra `train`, before data are read."""
    with needs_extra("train", "training"):
        import matplotlib  # noqa: F401
        import tensorboardX  # noqa: F401


def run_training(
    stage: Callable[..., Outcome], config: Config, folder: Path, **settings: Any
) -> Outcome:
    """Load the data and run a stage with its progress shown."""
    from mpcvit.report.live import LiveProgress, tell
    from mpcvit.report.runs import FigureWriter
    from mpcvit.train.devices import join_hosts
    from mpcvit.train.loop import StoppedError

    require_training_packages()
    join_hosts(config.distributed)
    dataset = load_data(config)
    if settings.get("start") is not None and not settings.get("resume"):
        tell_start(config, dataset, settings["start"], settings.get("architecture"))
    try:
        with LiveProgress() as live:
            return stage(config, dataset, folder, observers=(live, FigureWriter()), **settings)
    except StoppedError as stopped:
        tell(f"{stopped}; add --resume to go on")
        raise typer.Exit(130) from None


def tell_start(
    config: Config, dataset: "Dataset", start: "Checkpoint", architecture: "Architecture | None"
) -> None:
    """Print what a training takes over from a checkpoint, and what is new."""
    from mpcvit.artifacts.architecture import Architecture
    from mpcvit.model.start import start_from
    from mpcvit.model.vit import init_parameters
    from mpcvit.report.live import tell

    model = config.model
    uniform = Architecture.uniform(model.attention, depth=model.depth, heads=model.heads)
    fresh = init_parameters(model, architecture or uniform, config.seed)
    tell(f"start: {start_from(start, fresh, model, dataset.classes)}")


@contextmanager
def until_stopped() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and SIGTERM set, instead of ending the process."""
    stop = threading.Event()
    former = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)

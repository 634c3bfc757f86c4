"""`mpcvit train` and `mpcvit retrain`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson, ConfigFile, DataFolder, Overrides, print_json
from mpcvit.config import Config, load_config
from mpcvit.cores import split_cpu
from mpcvit.errors import UserError
from mpcvit.records import CURVES_FILE, MODEL_FILE, STATE_FILE

if TYPE_CHECKING:
    from mpcvit.arch import Architecture
    from mpcvit.checkpoint import Checkpoint

Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder; runs/NAME unless given."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the run folder's last saved state.")
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Start again, replacing an earlier run.")]


@app.command()
def train(
    config_file: ConfigFile,
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Out = None,
    arch: Annotated[
        Path | None,
        typer.Option("--arch", help="Architecture (JSON); model.attention everywhere otherwise."),
    ] = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train a model from scratch.

    Writes model.safetensors, log.jsonl, curves.png and TensorBoard files into
    the run folder. Ctrl-C saves and stops; --resume goes on to the very same
    parameters as an uninterrupted run.

    Example: mpcvit train configs/digits.toml --set train.epochs=5
    """
    config = _configure(config_file, data, overrides)
    architecture = None if arch is None else _load_architecture(arch, config)
    folder = out or config.folder
    _choose(folder, resume=resume, fresh=fresh)
    split_cpu(config.train.batch_size)

    from mpcvit.train.supervised import train as stage

    _carry_out(stage, config, folder, as_json, architecture=architecture, resume=resume)


@app.command()
def retrain(
    config_file: ConfigFile,
    arch: Annotated[Path, typer.Option("--arch", help="Architecture to train (JSON).")],
    teacher: Annotated[Path, typer.Option("--teacher", help="Checkpoint to learn from.")],
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Out = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train an architecture from scratch with a teacher (distillation).

    The loss adds up labels, the teacher's logits and its last tokens, by the
    weights of the distill section; a weight of 0 switches a term off.

    Example: mpcvit retrain configs/digits.toml --arch arch.json --teacher
    runs/digits/model.safetensors --out runs/retrained
    """
    config = _configure(config_file, data, overrides)
    architecture = _load_architecture(arch, config)
    folder = out or config.folder
    _choose(folder, resume=resume, fresh=fresh)
    split_cpu(config.train.batch_size)

    from mpcvit.checkpoint import Checkpoint
    from mpcvit.train.distilled import retrain as stage

    _carry_out(
        stage,
        config,
        folder,
        as_json,
        architecture=architecture,
        teacher=Checkpoint.load(teacher),
        resume=resume,
    )


def _configure(config_file: Path, data: Path | None, overrides: list[str] | None) -> Config:
    settings = list(overrides or [])
    if data is not None:
        settings.append(f"data.path={str(data)!r}")
    return load_config(config_file, settings)


def _load_architecture(path: Path, config: Config) -> "Architecture":
    from mpcvit.arch import Architecture

    architecture, model = Architecture.load(path), config.model
    architecture.validate(depth=model.depth, heads=model.heads, tokens=model.tokens)
    return architecture


def _choose(folder: Path, *, resume: bool, fresh: bool) -> None:
    """Neither lose a run that is there nor resume one that is not."""
    if resume and fresh:
        raise UserError("--resume and --fresh exclude each other")
    has_state = (folder / STATE_FILE).exists()
    if resume and not has_state:
        raise UserError(f"there is nothing to resume in {folder}")
    if (has_state or (folder / MODEL_FILE).exists()) and not (resume or fresh):
        raise UserError(f"{folder} already holds a run; add --resume, --fresh or another --out")


def _carry_out(
    stage: "Callable[..., Checkpoint]",
    config: Config,
    folder: Path,
    as_json: bool,
    **settings: Any,
) -> None:
    """Load the data, run a stage with its progress shown, and say what came of it."""
    from mpcvit.data import load_dataset
    from mpcvit.optim.devices import join_hosts
    from mpcvit.optim.loop import StoppedError
    from mpcvit.report.curves import CurveWriter
    from mpcvit.report.live import LiveProgress, console, counting

    join_hosts(config.distributed)
    with counting() as progress:
        dataset = load_dataset(
            config.data,
            image_size=config.model.image_size,
            channels=config.model.channels,
            classes=config.model.classes,
            progress=progress,
        )
    try:
        with LiveProgress() as live:
            checkpoint = stage(config, dataset, folder, observers=(live, CurveWriter()), **settings)
    except StoppedError as stopped:
        console.print(f"{stopped}; add --resume to go on", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    metrics = checkpoint.provenance.metrics
    if as_json:
        print_json({"model": str(folder / MODEL_FILE), **metrics})
        return
    print(f"test accuracy {100 * metrics['test_top1']:.2f} %")
    print(f"model         {folder / MODEL_FILE}")
    print(f"curves        {folder / CURVES_FILE}")

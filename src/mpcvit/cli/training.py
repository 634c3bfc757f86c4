"""`mpcvit train`."""

from pathlib import Path
from typing import Annotated, Optional

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson, ConfigFile, DataFolder, Overrides, print_json
from mpcvit.errors import UserError
from mpcvit.records import CURVES_FILE, MODEL_FILE, STATE_FILE


@app.command()
def train(
    config_file: ConfigFile,
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", help="Run folder; runs/NAME unless given."),
    ] = None,
    arch: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--arch", help="Architecture (JSON); model.attention everywhere otherwise."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the run folder's last saved state.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again, replacing an earlier run.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model from scratch.

    Writes model.safetensors, log.jsonl, curves.png and TensorBoard files into
    the run folder. Ctrl-C saves and stops; --resume goes on to the very same
    parameters as an uninterrupted run.

    Example: mpcvit train configs/digits.toml --set train.epochs=5
    """
    from mpcvit.arch import Architecture
    from mpcvit.config import load_config
    from mpcvit.cores import split_cpu

    settings = list(overrides or [])
    if data is not None:
        settings.append(f"data.path={str(data)!r}")
    config = load_config(config_file, settings)
    architecture = Architecture.load(arch) if arch is not None else None
    if architecture is not None:
        model = config.model
        architecture.validate(depth=model.depth, heads=model.heads, tokens=model.tokens)
    folder = out or config.folder
    _choose(folder, resume=resume, fresh=fresh)

    split_cpu(config.train.batch_size)

    from mpcvit.data import load_dataset
    from mpcvit.optim.devices import join_hosts
    from mpcvit.optim.loop import StoppedError
    from mpcvit.report.curves import CurveWriter
    from mpcvit.report.live import LiveProgress, console, counting
    from mpcvit.train.supervised import train as run

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
            checkpoint = run(
                config,
                dataset,
                folder,
                architecture=architecture,
                resume=resume,
                observers=(live, CurveWriter()),
            )
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


def _choose(folder: Path, *, resume: bool, fresh: bool) -> None:
    """Neither lose a run that is there nor resume one that is not."""
    if resume and fresh:
        raise UserError("--resume and --fresh exclude each other")
    has_state = (folder / STATE_FILE).exists()
    if resume and not has_state:
        raise UserError(f"there is nothing to resume in {folder}")
    if (has_state or (folder / MODEL_FILE).exists()) and not (resume or fresh):
        raise UserError(f"{folder} already holds a run; add --resume, --fresh or another --out")

"""`mpcvit train` and `mpcvit retrain`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Config
from mpcvit.artifacts.provenance import CURVES_FILE, MODEL_FILE, judged_by
from mpcvit.artifacts.resolve import validate
from mpcvit.cli import app, complete
from mpcvit.cli.making.start import From, begin_training
from mpcvit.cli.options import AsJson, ConfigFile, DataFolder, Overrides
from mpcvit.cli.running import Fresh, Out, Resume, run_training
from mpcvit.cli.show import print_json, print_pairs

if TYPE_CHECKING:
    from mpcvit.model.checkpoint import Checkpoint


@app.command()
def train(
    config_file: ConfigFile,
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Out = None,
    arch: Annotated[
        Path | None,
        typer.Option(
            "--arch", help="Architecture (JSON); model.attention in every head unless given."
        ),
    ] = None,
    start: From = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train a model from scratch, or from the weights of another (--from).

    Writes model.safetensors, log.jsonl, curves.png and TensorBoard files into
    the run folder. Ctrl-C saves and stops. --resume goes on, and ends in the
    very same parameters as an uninterrupted run.

    Example: mpcvit train digits --set train.epochs=5
    """
    work = config_file, start, data, overrides, out
    config, folder, begun = begin_training(*work, resume=resume, fresh=fresh)
    architecture = None if arch is None else _load_architecture(arch, config)

    from mpcvit.train.supervised import train as stage

    known = {"architecture": architecture, "start": begun, "resume": resume}
    _tell(run_training(stage, config, folder, **known), folder, as_json)


@app.command()
def retrain(
    config_file: ConfigFile,
    arch: Annotated[Path, typer.Option("--arch", help="Architecture to train (JSON).")],
    teacher: Annotated[
        Path,
        typer.Option(
            "--teacher", help="Checkpoint to learn from.", autocompletion=complete.checkpoint
        ),
    ],
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Out = None,
    start: From = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Train an architecture from scratch with a teacher (distillation).

    The loss adds up labels, the teacher's logits and its last tokens, by the
    weights of the distill section. A weight of 0 switches a term off.

    Example: mpcvit retrain digits --arch arch.json --teacher
    runs/digits/model.safetensors --out runs/retrained
    """
    work = config_file, start, data, overrides, out
    config, folder, begun = begin_training(*work, resume=resume, fresh=fresh)
    architecture = _load_architecture(arch, config)

    from mpcvit.model.checkpoint import Checkpoint
    from mpcvit.train.distilled import retrain as stage

    known = {"architecture": architecture, "start": begun, "resume": resume}
    taught = run_training(stage, config, folder, teacher=Checkpoint.load(teacher), **known)
    _tell(taught, folder, as_json)


def _load_architecture(path: Path, config: Config) -> Architecture:
    architecture = Architecture.load(path)
    validate(config.model, architecture)
    return architecture


def _tell(checkpoint: "Checkpoint", folder: Path, as_json: bool) -> None:
    metrics = checkpoint.provenance.metrics
    if as_json:
        print_json({"model": str(folder / MODEL_FILE), **metrics})
        return
    split = judged_by(metrics)
    print_pairs(
        {
            f"{split} accuracy": f"{100 * metrics[f'{split}_top1']:.2f} %",
            "model": folder / MODEL_FILE,
            "curves": folder / CURVES_FILE,
        }
    )

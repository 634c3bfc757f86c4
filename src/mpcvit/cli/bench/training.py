"""`mpcvit bench training`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import Out, is_delivered, known_networks
from mpcvit.cli.options import AsJson, Overrides
from mpcvit.cli.running import require_training_packages
from mpcvit.cli.show import print_table
from mpcvit.cores import split_cpu


@bench.command()
def training(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG...", help="Shapes: names or TOML files.")
    ],
    overrides: Overrides = None,
    stages: Annotated[
        str, typer.Option(help="What to train: train, search and retrain, between commas.")
    ] = "train,search,retrain",
    steps: Annotated[int, typer.Option(min=1, help="Steps to time after the first.")] = 1,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure the peak memory and the seconds of training steps on this machine.

    Weights and images are random. Each row is a process of its own, whose first
    step compiles. Less memory: train.piece_size=4, or train.remat=true.

    Example: mpcvit bench training deit-tiny --set train.batch_size=32
    """
    require_training_packages()
    shapes = {path.stem: load_config(path, list(overrides or [])) for path in configs}
    split_cpu(next(iter(shapes.values())).train.batch_size)

    from mpcvit.bench.training import STAGES, bench_training
    from mpcvit.report.live import counting

    wanted = tuple(known_networks(stages, list(STAGES)))
    with counting() as progress:
        rows = bench_training(shapes, stages=wanted, steps=steps, progress=progress)
    if is_delivered(rows, out, as_json):
        return
    print_table(
        rows,
        {
            "model": "{model}",
            "stage": "{stage}",
            "batch": "{batch_size}",
            "at once": "{piece_size}",
            "remat": "{remat}",
            "peak GB": "{peak_gb:.2f}",
            "s a step": "{step_s:.1f}",
            "images/s": "{images_per_s:.1f}",
        },
    )

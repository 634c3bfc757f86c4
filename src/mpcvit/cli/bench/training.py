"""`mpcvit bench training`."""

from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    Out,
    is_delivered,
)
from mpcvit.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
)


@bench.command()
def training(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds per measurement.")] = 10,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Images per second of training, search, their input pipeline and evaluation.

    Where PyTorch is installed, a PyTorch network of the same shape is measured
    in turns with ours.

    Example: mpcvit bench training configs/cifar10.toml --out results/training-speed.csv
    """
    from mpcvit.cores import split_cpu

    config = load_config(config_file, list(overrides or []))
    split_cpu(config.train.batch_size)

    from mpcvit.bench.training import bench_training
    from mpcvit.report.live import counting

    with counting() as progress:
        rows = bench_training(config, rounds=rounds, progress=progress)
    if is_delivered(rows, out, as_json):
        return
    for row in rows:
        print(
            f"{row['what']:<22} {row['images_per_s']:>9,.1f} images/s"
            f"  ({row['low_quartile']:,.1f} to {row['high_quartile']:,.1f})"
            f"  {row['times_jax_step']:.2f} x"
        )

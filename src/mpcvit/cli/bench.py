"""`mpcvit bench`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson, ConfigFile, Overrides, print_json

bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")
app.add_typer(bench, name="bench")


@bench.command()
def training(
    config_file: ConfigFile = Path("configs/cifar10.toml"),
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds per measurement.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="CSV file for the rows."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Images per second of training, of its input pipeline and of evaluation.

    Where PyTorch is installed, a PyTorch network of the same shape is measured
    in turns with ours.

    Example: mpcvit bench training configs/cifar10.toml --out results/training-speed.csv
    """
    from mpcvit.config import load_config
    from mpcvit.cores import split_cpu

    config = load_config(config_file, list(overrides or []))
    split_cpu(config.train.batch_size)

    from mpcvit.bench.training import bench_training
    from mpcvit.records import write_rows
    from mpcvit.report.live import counting

    with counting() as progress:
        rows = bench_training(config, rounds=rounds, progress=progress)
    if out is not None:
        write_rows(out, rows)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print(
            f"{row['what']:<22} {row['images_per_s']:>9,.1f} images/s"
            f"  ({row['low_quartile']:,.1f} to {row['high_quartile']:,.1f})"
            f"  {row['times_jax_step']:.2f} x"
        )

"""`mpcvit bench`."""

import typer

from mpcvit.cli import app

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure this machine, and private inference on it.\n\n"
    "Example: mpcvit bench network --networks softmax,scaling",
)
app.add_typer(bench, name="bench")

# each module adds its commands to `bench`
from mpcvit.cli.bench import lowering, networks, runs  # noqa: E402

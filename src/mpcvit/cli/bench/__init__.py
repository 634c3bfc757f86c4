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
from mpcvit.cli.bench import (  # noqa: E402
    dealer,  # noqa: F401
    forecast,  # noqa: F401
    lowering,  # noqa: F401
    networks,  # noqa: F401
    peers,  # noqa: F401
    set_up,  # noqa: F401
    threads,  # noqa: F401
    training,  # noqa: F401
    tunnel,  # noqa: F401
)

"""`mpcvit bench`."""

import typer

from mpcvit.cli import app

bench = typer.Typer(no_args_is_help=True, help="Measure this machine; results go to results/.")
app.add_typer(bench, name="bench")

"""The command line: one command per stage.

Stages are imported inside commands, so that help and completion answer at once.
"""

import sys
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from mpcvit import __version__
from mpcvit.errors import UserError


class _RefusalError(click.ClickException):
    """A user's mistake: one sentence on standard error, exit code 2."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        print(f"mpcvit: {self.message}", file=sys.stderr)


class _Commands(TyperGroup):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            raise _RefusalError(str(error)) from error


app = typer.Typer(
    name="mpcvit",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train Vision Transformers that are fast, accurate and private under secure "
    "multi-party computation.",
)


def _version(asked: bool) -> None:
    if asked:
        print(f"mpcvit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


# Each module registers its commands on `app`.
from mpcvit.cli import bench, models, training  # noqa: E402, F401


def main() -> None:
    app()

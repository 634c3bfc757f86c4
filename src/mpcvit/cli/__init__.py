"""The command line: one command per stage.

Stages are imported inside commands, so that help and completion answer at once.
"""

import errno
import os
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpcvit import __version__
from mpcvit.artifacts.profile import InsecureProfileWarning
from mpcvit.errors import UserError, shown, shown_lines

# As the help shows them: by what a user wants, and in the order of the work.
PANELS = {
    "Use a model": ("demo", "import", "lower", "run", "serve", "predict", "app", "show", "explain"),
    "Make a model": (*("train", "search", "derive", "retrain", "pipeline", "evaluate", "compare"),),
    "Research": ("experiment", "bench", "profile", "estimate", "report"),
    "Set up": ("doctor", "certs", "dealer", "configs"),
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ORDER = tuple(_PANEL_OF)
_FULL = (errno.ENOSPC, errno.EDQUOT)  # of what standard output goes to


class _Commands(TyperGroup):
    """Tells a user's mistake in one sentence on standard error, with exit code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = _PANEL_OF[cmd_name]  # type: ignore[attr-defined]
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            # it may repeat what a file or a peer brought
            typer.echo(f"mpcvit: {shown_lines(str(error))}", err=True)
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno in _FULL:
                sentence = f"cannot write the output: {error.strerror}"
            elif isinstance(error, PermissionError) and error.filename is not None:
                place = shown(os.fsdecode(error.filename))
                sentence = f"this user may not open {place}; change its permissions or its folder's"
            else:
                raise
            typer.echo(f"mpcvit: {sentence}", err=True)
            raise typer.Exit(2) from error
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing in ("", "mpcvit"):
                raise
            needed = f"this command needs {missing}, which is not installed"
            typer.echo(f"mpcvit: {needed}; run pip install mpcvit", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    name="mpcvit",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train Vision Transformers that are fast, accurate and private under secure "
    "multi-party computation, and run them.\n\n"
    "Example: mpcvit demo",
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
    # commands say it in their own words
    warnings.filterwarnings("ignore", category=InsecureProfileWarning)


# Each module registers its commands on `app`.
from mpcvit.cli import (  # noqa: E402
    bench,
    demo,
    hosts,
    lowering,
    making,
    models,
    research,
    run,
    setup,
    web,
)


def main() -> None:
    app()

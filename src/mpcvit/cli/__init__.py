"""The command line: one command per stage.

Stages are imported inside commands, so that help and completion answer at once.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mpcvit import __version__
from mpcvit.errors import UserError

# In the order of the work, not of the alphabet.
_ORDER = (
    *("demo", "train", "estimate", "search", "derive", "retrain", "compare", "experiment"),
    *("pipeline", "report", "evaluate", "show", "import", "lower", "explain", "run"),
    *("certs", "serve", "predict", "dealer", "profile", "bench"),
)


class _Commands(TyperGroup):
    """Tells a user's mistake in one sentence on standard error, with exit code 2."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=_ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            typer.echo(f"mpcvit: {error}", err=True)
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
    pass


# Each module registers its commands on `app`.
from mpcvit.cli import (  # noqa: E402
    bench,  # noqa: F401
    certs,  # noqa: F401
    dealer,  # noqa: F401
    demo,  # noqa: F401
    experiment,  # noqa: F401
    hosts,  # noqa: F401
    lowering,  # noqa: F401
    models,  # noqa: F401
    pipeline,  # noqa: F401
    report,  # noqa: F401
    run,  # noqa: F401
    search,  # noqa: F401
    training,  # noqa: F401
)


def main() -> None:
    app()

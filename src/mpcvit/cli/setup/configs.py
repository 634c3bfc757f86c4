"""`mpcvit configs`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.shipped import CONFIGS, find_shipped, shipped_names
from mpcvit.cli import app, complete
from mpcvit.cli.options import AsJson
from mpcvit.cli.show import print_json, print_pairs
from mpcvit.storage import read_text


@app.command("configs")
def configs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Configuration to print, instead of the list.",
            autocompletion=complete.config,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the configurations that come with the package, or print one to start from.

    A command that takes CONFIG knows them by their names. A file of yours with
    the same name goes first.

    Example: mpcvit configs digits > my.toml
    """
    what = "configuration"
    if name is not None:
        print(read_text(find_shipped(Path(name), CONFIGS, what), what), end="")
        return
    abouts = {own: _about(CONFIGS / f"{own}.toml") for own in shipped_names(CONFIGS)}
    if as_json:
        print_json(abouts)
    else:
        print_pairs(abouts)


def _about(path: Path) -> str:
    """Return the first sentence of a file's header, which begins with its commands."""
    lines = path.read_text(encoding="utf-8").splitlines()
    said = (line[2:] for line in lines[:10] if line.startswith("# "))
    header = " ".join(line for line in said if not line.startswith("mpcvit "))
    return header.partition(". ")[0].rstrip(".") + "."

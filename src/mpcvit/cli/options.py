"""Options that several commands share."""

import re
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.cli import complete
from mpcvit.errors import UserError

ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="TOML file, or a name that `mpcvit configs` lists, such as digits.",
        autocompletion=complete.config,
    ),
]
ModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="Checkpoint (.safetensors).", autocompletion=complete.checkpoint
    ),
]
AnyModelFile = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL",
        help="Checkpoint (.safetensors), or a lowered program's folder.",
        autocompletion=complete.model,
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the data set, in place of data.path."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Key of the configuration to override, as in train.epochs=1.",
    ),
]
LatencyFile = Annotated[
    Path | None,
    typer.Option("--latency", help="Latency file; modelled for this model unless given."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def settings_of(data: Path | None, overrides: list[str] | None) -> list[str]:
    """Return the settings that the command line changes."""
    settings = list(overrides or [])
    if data is not None:
        settings.append(f"data.path={str(data)!r}")
    return settings


def parse_numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Read numbers between commas.

    >>> parse_numbers("0.5,0.25", "--mean")
    (0.5, 0.25)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} must be numbers between commas, not {text!r}") from None


def parse_whole_numbers(text: str, option: str) -> list[int]:
    """Read whole numbers between commas.

    >>> parse_whole_numbers("0,1", "--seeds")
    [0, 1]
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{option} must be whole numbers between commas, not {text!r}") from None


def parse_seconds(text: str, option: str = "--latency-budget") -> float:
    """Read seconds as people write them.

    >>> parse_seconds("12s"), parse_seconds("500ms"), parse_seconds("1.5min"), parse_seconds("7")
    (12.0, 0.5, 90.0, 7.0)
    """
    units = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0}
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|min|)", text.strip())
    if match is None:
        raise UserError(f"{option} must be seconds such as 12s or 500ms, not {text!r}")
    return float(match[1]) * units[match[2]]

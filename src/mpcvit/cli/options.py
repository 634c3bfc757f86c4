"""Options that several commands share."""

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Experiment as TOML, such as configs/digits.toml.")
]
ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="Checkpoint (.safetensors).")]
DataFolder = Annotated[
    Optional[Path],  # noqa: UP045 - Typer reads this at run time, on 3.10 too
    typer.Option("--data", help="Folder of the data set; overrides data.path."),
]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, as in train.epochs=1."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))

"""What the benchmarks share: options, and how they deliver rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import mpcvit
from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.cli import complete
from mpcvit.cli.show import print_json, print_table
from mpcvit.errors import MissingExtraError, UserError, nearest

CIFAR = Path("cifar10")
TINY_IMAGENET = Path("tiny-imagenet")
PAPER_PROFILE = "semi2k-wan"
DEALER_PROFILE = "semi2k-dealer-wan"
EXAMPLES = [  # public halves of trained networks that were lowered
    Path(mpcvit.__file__).parent / "bench" / "programs" / f"{kind}.json"
    for kind in ("relu_softmax", "softmax", "linformer", "quad2", "the_x")
]
SECONDS_AN_IMAGE = {
    "s an image": "{median_s:.3f}",
    "fastest": "{fastest_s:.3f}",
    "slowest": "{slowest_s:.3f}",
}
_APART = ("profile", "form", "batch", "table", "value", "layer")  # columns that tell rows apart
_SECONDS = {
    "s modelled": "{modelled_s:.2f}",
    "s measured": "{measured_s:.2f}",
    "s in the paper": "{paper_s:.2f}",
}

Profiles = Annotated[
    str,
    typer.Option(
        "--profiles", help="Profiles to compare, between commas.", autocompletion=complete.profiles
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="CSV file for the rows.")]
TableOut = Annotated[
    Path | None,
    typer.Option("--out", help="CSV file; a figure of the same name goes beside it."),
]
Architectures = Annotated[
    list[Path] | None,
    typer.Option(
        "--arch",
        help="Architecture of a search (JSON of `mpcvit derive`), named by its file; it "
        "replaces the random one of the same name. Repeat for more.",
    ),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure", help="Also run in processes through the emulated network, and time it."
    ),
]


def load_profiles(names: str) -> dict[str, Profile]:
    """Return the profiles between commas, by name."""
    return {name.strip(): load_profile(name.strip()) for name in names.split(",")}


def known_networks(names: str, known: list[str]) -> list[str]:
    """Return the names between commas, and refuse one that is not known."""
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise UserError(f"there is no network {name!r}; {nearest(name, known)}")
    return wanted


def beside_paper(
    rows: Iterable[Mapping[str, Any]],
    label: str,
    config: str,
    experiment: str,
    published: Callable[[str, str, str], Any],
) -> Iterator[dict[str, Any]]:
    """Put the paper's seconds after ours."""
    for row in rows:
        seconds = published(config, experiment, row[label]).latency_s
        place = list(row).index("measured_s") + 1
        items = list(row.items())
        paper = ("paper_s", "" if seconds is None else seconds)
        yield dict([*items[:place], paper, *items[place:]])


def written_as_they_come(
    rows: Iterable[Mapping[str, Any]], out: Path | None
) -> list[Mapping[str, Any]]:
    """Return all rows; each is in the file at once, and stays if the command is stopped."""
    from mpcvit.artifacts.provenance import write_rows

    found: list[Mapping[str, Any]] = []
    for row in rows:
        found.append(row)
        if out is not None:
            write_rows(out, found)
    return found


def is_delivered(
    rows: Sequence[Mapping[str, Any]], out: Path | None, as_json: bool, *, drawn: bool = False
) -> bool:
    """Write rows to a file, and print them as JSON if asked to; say whether that was all."""
    from mpcvit.artifacts.provenance import write_rows

    if out is not None:
        write_rows(out, rows)
        if drawn:
            from mpcvit.report.page import draw_table

            try:
                draw_table(out)
            except MissingExtraError as missing:
                typer.echo(f"no figure: {missing}", err=True)
    if as_json:
        print_json(list(rows))
    return as_json


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    label: str,
    out: Path | None,
    as_json: bool,
) -> None:
    if is_delivered(rows, out, as_json, drawn=True):
        return
    apart = {name: f"{{{name}}}" for name in _APART if name in rows[0]}
    columns = {label: f"{{{label}}}", **apart, "exchanges": "{exchanges:,}"}
    columns |= {"MB sent": "{sent_mb:.2f}", **_SECONDS}
    print_table(rows, columns)
    for warning in dict.fromkeys(row["warning"] for row in rows if row["warning"]):
        print(warning)

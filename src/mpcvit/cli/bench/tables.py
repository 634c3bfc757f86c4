"""What the benchmarks share: options, and how they deliver rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mpcvit
from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.cli import complete
from mpcvit.cli.show import print_json, print_table
from mpcvit.errors import MissingExtraError, UserError, nearest
from mpcvit.progress import Progress
from mpcvit.storage import require_writable

if TYPE_CHECKING:
    from mpcvit.lowering.program import PublicProgram

Row = Mapping[str, Any]

CIFAR = Path("cifar10")
TINY_IMAGENET = Path("tiny-imagenet")
PAPER_PROFILE = "semi2k-wan"
DEALER_PROFILE = "semi2k-dealer-wan"
EXAMPLES = [  # public halves of trained networks that were lowered
    Path(mpcvit.__file__).parent / "bench" / "programs" / f"{kind}.json"
    for kind in ("relu_softmax", "softmax", "linformer", "quad2", "the_x")
]
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


def known_names(names: str, known: Iterable[str], what: str = "network") -> list[str]:
    """Return the names between commas, and refuse one that is not known."""
    wanted, known = [name.strip() for name in names.split(",")], list(known)
    for name in wanted:
        if name not in known:
            raise UserError(f"there is no {what} {name!r}; {nearest(name, known)}")
    return wanted


def shipped_references() -> "list[PublicProgram]":
    """Return the lowered networks of the package, whose approximations others may take."""
    from mpcvit.bench.lowered import read_reference

    return [read_reference(path) for path in EXAMPLES]


def deliver(
    measure: Callable[..., Iterable[Row]],
    columns: Mapping[str, str],
    out: Path | None,
    as_json: bool,
    *,
    drawn: bool = False,
) -> list[Row]:
    """Measure, and print the rows: as JSON, or some columns and what warns.

    Each row is in the file at once, and stays if the command is stopped.
    """
    from mpcvit.artifacts.provenance import write_rows
    from mpcvit.report.live import counting

    if out is not None:
        require_writable(out)
    rows: list[Row] = []
    with counting() as progress:
        for row in measure(progress=progress):
            rows.append(row)
            if out is not None:
                write_rows(out, rows)
    if out is not None and drawn:
        from mpcvit.report.page import draw_table

        try:
            draw_table(out)
        except MissingExtraError as missing:
            typer.echo(f"no figure: {missing}", err=True)
    if as_json:
        print_json(rows)
        return rows
    print_table(rows, columns)
    for warning in dict.fromkeys(row.get("warning") for row in rows):
        if warning:
            print(warning)
    return rows


def deliver_table(
    measure: Callable[..., Iterable[Row]],
    label: str,
    out: Path | None,
    as_json: bool,
    *,
    paper: tuple[str, str] | None = None,
) -> None:
    """Measure networks or operations, and draw a figure beside their file.

    `paper` names a configuration and an experiment, whose published seconds go after ours.
    """

    def rows(progress: Progress) -> Iterable[Row]:
        found = measure(progress=progress)
        return found if paper is None else _beside_paper(found, label, *paper)

    columns = {name: f"{{{name}}}" for name in (label, *_APART)}
    columns |= {"exchanges": "{exchanges:,}", "MB sent": "{sent_mb:.2f}", **_SECONDS}
    deliver(rows, columns, out, as_json, drawn=True)


def _beside_paper(
    rows: Iterable[Row], label: str, config: str, experiment: str
) -> Iterator[dict[str, Any]]:
    """Put the paper's seconds after ours."""
    from mpcvit.experiments.published import published

    for row in rows:
        seconds = published(config, experiment, row[label]).latency_s
        after, items = list(row).index("measured_s") + 1, list(row.items())
        paper = ("paper_s", "" if seconds is None else seconds)
        yield dict([*items[:after], paper, *items[after:]])

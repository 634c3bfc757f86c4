"""Add up the files of every distribution that an installation of mpcvit brings.

    python tools/installation_size.py --out results/installation.csv

Run it where the development extras are installed. pip and setuptools are not counted.
"""

import importlib.metadata as metadata
import re
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement

from mpcvit.artifacts.provenance import write_rows

ROOT = Path(__file__).parents[1]
LARGEST = 5


def main(out: Annotated[Path, typer.Option(help="CSV file for the rows.")]) -> None:
    """Write a row for the package, for what each extra adds, and for a dealer's host."""
    package = needed("mpcvit")
    rows = [row("mpcvit", package)]
    for extra in ("report", "train"):
        rows.append(row(f"mpcvit[{extra}]", needed("mpcvit", extra) - package))
    lines = (ROOT / "requirements-dealer.txt").read_text("utf-8").splitlines()
    dealer = {
        canonical(requirement.name)
        for requirement in (Requirement(line) for line in lines if line[:1] not in ("", "#"))
        if requirement.marker is None or requirement.marker.evaluate()
    }
    rows.append(row("requirements-dealer.txt", dealer | {"mpcvit"}))
    write_rows(out, rows)


def needed(name: str, *extras: str) -> set[str]:
    """Return a distribution and all that it requires, directly or not."""
    found: set[str] = set()
    waiting = [(canonical(name), frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        found.add(one[0])
        for requirement in map(Requirement, metadata.requires(one[0]) or ()):
            marker = requirement.marker
            environments = [{"extra": extra} for extra in one[1]] or [{"extra": ""}]
            if marker is None or any(marker.evaluate(own) for own in environments):
                waiting.append((canonical(requirement.name), frozenset(requirement.extras)))
    return found


def row(what: str, names: set[str]) -> dict[str, object]:
    sizes = sorted(((size_mb(name), name) for name in names), reverse=True)
    largest, others = sizes[:LARGEST], sizes[LARGEST:]
    made_of = [f"{name} {size:.0f}" for size, name in largest]
    if others:
        made_of.append(f"{len(others)} others {sum(size for size, _ in others):.0f}")
    total = sum(size for size, _ in sizes)
    return {"what": what, "mb": round(total, 1), "made_of": ", ".join(made_of)}


def size_mb(name: str) -> float:
    if name == "mpcvit":  # may be installed from this folder, without files of its own
        paths = [path for path in (ROOT / "src" / "mpcvit").rglob("*") if path.suffix != ".pyc"]
    else:
        paths = [Path(str(file.locate())) for file in metadata.files(name) or ()]
    return sum(path.stat().st_size for path in set(paths) if path.is_file()) / 1e6


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    typer.run(main)

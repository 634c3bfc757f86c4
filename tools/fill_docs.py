"""Fills tables and excerpts of the documentation from the files that hold their numbers.

A comment in a page declares a table: the source of its rows, and a template for each column.
`python tools/fill_docs.py` writes the rows between this comment and the next, and draws the
figures of the documentation again:

    <!-- table: secure/attention | kind: {attention} | seconds: {measured_s:.2f} -->
    <!-- end -->

The source is one or more CSV files below `results/`, or a function of `docs_rows.SOURCES`.
Words with an equals sign select rows: `form=lowered`, or `network=softmax,scaling` for several
values. The words `per=network by=form` put rows of the same network beside each other, so that
a template may read `{lowered[measured_s]:.1f}`. A value that no file holds prints as "–".

Another comment declares a text file below `results/`, or an excerpt: the lines that begin with one
of some words, and "…" for what is left out between them:

    <!-- text: demo/output.txt lines="truth,seconds per image" -->
    <!-- end -->
"""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from docs_rows import SOURCES, Row, Values, beside, read_rows
from draw_method import write_method

from mpcvit.errors import UserError
from mpcvit.report.charts.lowering import charts as lowering_charts
from mpcvit.report.collect import collect
from mpcvit.report.figures import write_figures
from mpcvit.report.page import draw_table
from mpcvit.storage import replacing

_MARKED = re.compile(r"(<!-- (table|text): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_LEFT_OUT = "…"


def pages(root: Path) -> list[Path]:
    """Return the pages of a clone that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(page: Path, root: Path) -> str:
    """Return the text of a page with its tables and excerpts made anew."""

    def fill(match: re.Match[str]) -> str:
        start, what, declaration, end = match.groups()
        make = make_table if what == "table" else make_excerpt
        try:
            return start + make(declaration, root) + end
        except (KeyError, ValueError, TypeError, OSError, UserError) as error:
            raise UserError(f"{page}: cannot make the {what} {declaration!r}: {error}") from error

    return _MARKED.sub(fill, page.read_text("utf-8"))


def write_tables(root: Path) -> list[Path]:
    """Fill the tables of all pages, and return the pages that changed."""
    if not (root / "results").is_dir() or not (root / "README.md").is_file():
        raise UserError(f"{root} has no README.md and no results/; run this in a clone of mpcvit")
    changed = []
    for page in pages(root):
        text = filled(page, root)
        if text != page.read_text("utf-8"):
            with replacing(page) as temporary:
                temporary.write_text(text, "utf-8")
            changed.append(page)
    return changed


def draw_figures(root: Path) -> list[Path]:
    """Draw the figures of the documentation and of result files, and return their files."""
    folder = root / "docs" / "figures"
    tables = (png.with_suffix(".csv") for png in sorted((root / "results").rglob("*.png")))
    drawn = [draw_table(table) for table in tables if table.exists()]
    collected = collect([root / "results" / "secure" / "lowering-dealer.csv"])
    charts = [chart for chart in lowering_charts(collected) if chart.id == "lowered-measured-s"]
    written = [write_method(folder / "method.png")]
    written += write_figures(folder, charts, formats=("png",))
    return [*written, *(path for path in drawn if path is not None)]


def make_table(declaration: str, root: Path) -> str:
    """Return the Markdown of a declared table."""
    source, *columns = declaration.split(" | ")
    pairs = [column.split(": ", 1) for column in columns]
    lines = [[heading for heading, _ in pairs], ["---"] * len(pairs)]
    for row in _rows_of(source, root):
        cells = [template.format_map(Values(row)) for _, template in pairs]
        lines.append([cell.replace("– to –", "–") for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def make_excerpt(declaration: str, root: Path) -> str:
    """Return a declared text file, or some of its lines, as a block of Markdown."""
    name, *chosen = shlex.split(declaration)
    lines = (root / "results" / name).read_text("utf-8").splitlines()
    beginnings = tuple(chosen[0].removeprefix("lines=").split(",")) if chosen else ("",)
    shown: list[str] = []
    for line in lines:
        if line.startswith(beginnings):
            shown.append(line)
        elif shown and shown[-1] != _LEFT_OUT:
            shown.append(_LEFT_OUT)
    for word in beginnings:
        if not any(line.startswith(word) for line in shown):
            raise UserError(f"{name} has no line that begins with {word!r}")
    if shown[-1] == _LEFT_OUT:
        shown.pop()
    return "".join(f"{line}\n" for line in ("```", *shown, "```"))


def _rows_of(source: str, root: Path) -> Iterable[Row]:
    words = shlex.split(source)
    options = dict(word.split("=", 1) for word in words if "=" in word)
    names = [word for word in words if "=" not in word]
    per, by = options.pop("per", ""), options.pop("by", "")
    read, names = (SOURCES[names[0]], names[1:]) if names[0] in SOURCES else (read_rows, names)
    chosen = [
        row
        for row in read(root, *names)
        if all(str(row.get(field, "")) in value.split(",") for field, value in options.items())
    ]
    return beside(chosen, per=per, by=by) if per else chosen


def main() -> None:
    root = Path()
    try:
        for path in (*write_tables(root), *draw_figures(root)):
            print(f"wrote {path}")
    except UserError as error:
        raise SystemExit(f"fill_docs: {error}") from error


if __name__ == "__main__":
    main()

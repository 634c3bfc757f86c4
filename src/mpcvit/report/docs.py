"""Fills the tables of the documentation from the files that hold their numbers.

A comment in a page declares a table: the source of its rows, and a template for each column.
`mpcvit report --docs` writes the rows between this comment and the next:

    <!-- table: secure/attention | kind: {attention} | seconds: {measured_s:.2f} -->
    <!-- end -->

The source is one or more CSV files below `results/`, or a function of `SOURCES`. Words with an
equals sign select rows: `form=lowered`, or `network=softmax,scaling` for several values. The
words `per=network by=form` put rows of the same network beside each other, so that a template
may read `{lowered[measured_s]:.1f}`. A value that no file holds prints as "–".
"""

import csv
import json
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mpcvit.codec import read_toml
from mpcvit.errors import UserError
from mpcvit.report.charts.lowering import charts as lowering_charts
from mpcvit.report.collect import collect
from mpcvit.report.figures import write_figures
from mpcvit.report.method import write_method
from mpcvit.report.page import draw_table
from mpcvit.storage import replacing

Row = dict[str, Any]
_MARKED = re.compile(r"(<!-- table: (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_OPERATION = re.compile(r"(\w+) (\d+) exchanges ([\d.]+) MB ([\d.]+) s")


class _Missing:
    """A value that no file holds."""

    def __format__(self, spec: str) -> str:
        return "–"

    def __getitem__(self, key: str) -> "_Missing":
        return self


class _Values(dict[str, Any]):
    """A row whose missing values print as dashes.

    >>> "{top1:.2f}, {lowered[exchanges]:,.0f}".format_map(_Values(top1=73.23))
    '73.23, –'
    """

    def __missing__(self, key: str) -> _Missing:
        return _Missing()


def pages(root: Path) -> list[Path]:
    """Return the pages of a clone that may hold tables."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def filled(page: Path, root: Path) -> str:
    """Return the text of a page with the rows of its tables made anew."""

    def fill(match: re.Match[str]) -> str:
        start, declaration, end = match.groups()
        try:
            return start + make_table(declaration, root) + end
        except (KeyError, ValueError, TypeError, UserError) as error:
            raise UserError(f"{page}: cannot make the table {declaration!r}: {error}") from error

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


def write_figures_of_docs(root: Path) -> list[Path]:
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
        cells = [template.format_map(_Values(row)) for _, template in pairs]
        lines.append([cell.replace("– to –", "–") for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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


def read_rows(root: Path, *names: str) -> list[Row]:
    """Return the rows of CSV files below `results/`; a file that is not there has no rows."""
    found = []
    for path in (root / "results" / f"{name}.csv" for name in names):
        if path.exists():
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    found.append({key: _number(text) for key, text in row.items() if text})
    return found


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def beside(rows: Iterable[Row], *, per: str, by: str) -> list[Row]:
    """Return one row for each value of `per`, which holds its rows by the value of `by`.

    >>> rows = [{"n": "a", "form": "plain", "s": 3}, {"n": "a", "form": "lowered", "s": 1}]
    >>> beside(rows, per="n", by="form")[0]["lowered"]["s"]
    1
    """
    together: dict[Any, Row] = {}
    for row in rows:
        together.setdefault(row[per], {per: row[per]})[str(row[by])] = _Values(row)
    return list(together.values())


def joined(*tables: Iterable[Row]) -> list[Row]:
    """Return the rows of all tables, with those of one network merged; later values win."""
    together: dict[Any, Row] = {}
    for row in (row for table in tables for row in table):
        together.setdefault(row["network"], {}).update(row)
    return list(together.values())


def _shipped(root: Path) -> list[Row]:
    """Return the networks of `mpcvit demo`, with top-1 in % by form."""
    path = root / "src" / "mpcvit" / "demo" / "shipped" / "showcase.json"
    networks = json.loads(path.read_text("utf-8"))["networks"]
    return [one | {form: 100 * top1 for form, top1 in one["top1"].items()} for one in networks]


def _published(root: Path, data: str, experiment: str) -> list[Row]:
    """Return the paper's values for an experiment."""
    path = root / "src" / "mpcvit" / "experiments" / "published.toml"
    networks = read_toml(path, "published figures")[data][experiment]
    names = {"top1": "paper_top1", "latency_s": "paper_s"}
    return [
        {"network": network, **{names[key]: value for key, (value, _) in values.items()}}
        for network, values in networks.items()
    ]


def _experiment(root: Path, name: str, *folders: str) -> list[Row]:
    """Return the networks of an experiment on CIFAR-10: the paper's values, and ours."""
    return joined(
        _published(root, "cifar10", name),
        *(read_rows(root, f"{folder}/{name}") for folder in folders),
    )


def _trade_off(root: Path) -> list[Row]:
    """Return figure 7's networks that were trained or timed here."""
    trained = _experiment(root, "trade-off", "cifar10-tiny", "cifar10-tiny-per-layer")
    seconds = {row["network"]: row["measured_s"] for row in read_rows(root, "secure/network-cifar")}
    for row in trained:
        network = row["network"].removesuffix("-distilled").replace("linformer-0.5", "linformer")
        if network in seconds:
            row["plain_s"] = seconds[network]
    return [row for row in trained if {"top1_mean", "plain_s"} & row.keys()]


def _attention_variants(root: Path) -> list[Row]:
    """Return table 2's kinds with the accuracy that was trained here."""
    layers = [{"network": row["attention"], **row} for row in read_rows(root, "secure/attention")]
    return joined(layers, _experiment(root, "attention-variants", "cifar10-tiny"))


def _tiny_ratios(root: Path) -> Iterable[Row]:
    """Compare seconds of other networks with MPCViT's at the Tiny-ImageNet shape."""
    rows = {row["network"]: row for row in read_rows(root, "secure/network-tiny-imagenet")}
    published = {row["network"]: row for row in _published(root, "tiny-imagenet", "trade-off")}
    for other, own in (("softmax", "0.1"), ("mpcformer", "0.3"), ("the_x", "0.1")):
        yield {
            "other": other,
            "own": own,
            "ours": rows[other]["modelled_s"] / rows[f"mpcvit-{own}"]["modelled_s"],
            "paper": published[other]["paper_s"] / published[f"mpcvit-{own}"]["paper_s"],
        }


def _operations(root: Path, name: str) -> Iterable[Row]:
    """Return the operations of each row, from its column `made_of`."""
    for row in read_rows(root, name):
        for operation, *counts in _OPERATION.findall(row["made_of"]):
            names = ("operation_exchanges", "operation_mb", "operation_s")
            yield {
                **row,
                "operation": operation,
                **dict(zip(names, map(float, counts), strict=True)),
            }


def _layers(root: Path) -> Iterable[Row]:
    """Return what the layers of each network take, from the least to the most."""
    networks: dict[str, list[Row]] = {}
    for row in read_rows(root, "secure/layers"):
        networks.setdefault(row["network"], []).append(row)
    for network, layers in networks.items():
        row: Row = {"network": network}
        for field in ("exchanges", "sent_mb", "modelled_s"):
            values = [layer[field] for layer in layers]
            row[field] = {"least": min(values), "most": max(values)}
        yield row


def _seeds(root: Path, *folders: str) -> list[Row]:
    """Return each network's accuracy by seed, and the mean."""
    runs = [
        row | {"seed": f"seed {row['seed']}"}
        for row in read_rows(root, *(f"{folder}/trade-off-runs" for folder in folders))
    ]
    means = read_rows(root, *(f"{folder}/trade-off" for folder in folders))
    return joined(beside(runs, per="network", by="seed"), means)


def _lengths(root: Path, *folders: str) -> Iterable[Row]:
    """Return the last epoch of each network in trainings of different length."""
    for folder in folders:
        last = {
            row["network"]: row
            for row in read_rows(root, f"{folder}/trade-off-epochs")
            if row["seed"] == 0
        }
        yield {"training": folder, **{name: _Values(row) for name, row in last.items()}}


SOURCES: dict[str, Callable[..., Iterable[Row]]] = {
    "shipped": _shipped,
    "experiment": _experiment,
    "trade_off": _trade_off,
    "attention_variants": _attention_variants,
    "tiny_ratios": _tiny_ratios,
    "operations": _operations,
    "layers": _layers,
    "seeds": _seeds,
    "lengths": _lengths,
}

"""Prints results: a table, names with their values, or JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mpcvit.errors import shown

_MISSING = "–"


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=2))


def print_pairs(pairs: Mapping[str, Any], indent: str = "") -> None:
    """Print a line for each name with its value; several lines of a value stand below it."""
    width = max(map(len, pairs))
    for name, value in pairs.items():
        first, *others = map(shown, str(value).splitlines() or [""])
        print(f"{indent}{name:<{width}}  {first}")
        for line in others:
            print(f"{indent}{'':<{width}}  {line}")


def print_table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """Print rows as a table; `columns` gives each heading the template of its cells.

    A template is that of `str.format`, such as "{seconds:.2f}". Cells with a format are
    numbers, and stand at the right. A value that is not there prints as "–", and a column
    without any value is left out.
    """
    from rich.console import Console
    from rich.table import Table

    table, shown = Table(box=None, pad_edge=False, header_style=""), []
    for heading, template in columns.items():
        cells = [fill(template, row) for row in rows]
        if set(cells) != {_MISSING}:
            justify = "right" if ":" in template else "left"
            table.add_column(heading, justify=justify, overflow="fold")
            shown.append(cells)
    for line in zip(*shown, strict=True):
        table.add_row(*line)
    # a file or a pipe wants whole lines
    console = Console(width=None if Console().is_terminal else 200, highlight=False)
    console.print(table, markup=False)


def fill(template: str, row: Mapping[str, Any]) -> str:
    """Return a template filled with a row's values, or a dash if one is missing.

    >>> fill("{s:.2f} s", {"s": 1}), fill("{s:.2f} s", {"s": ""}), fill("{s:.2f}", {})
    ('1.00 s', '–', '–')
    """
    try:
        return template.format_map(row)
    except (KeyError, ValueError, TypeError):
        return _MISSING

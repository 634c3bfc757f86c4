"""The report as one HTML page: charts as SVG, their rows in tables, style and script inside."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from mpcvit.report import provenance
from mpcvit.report.charts import (
    heads,
    layers,
    learning,
    lowering,
    operations,
    precision,
    seconds,
    trade_off,
)
from mpcvit.report.charts.chart import Chart, Row, slug
from mpcvit.report.charts.trade_off import TradeOff
from mpcvit.report.collect import Collected, collect
from mpcvit.report.figures import to_svg, write_figure
from mpcvit.storage import write_text

_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Charts on one question."""

    title: str
    charts: tuple[Chart, ...]


def make_sections(collected: Collected, published: Sequence[TradeOff] = ()) -> list[Section]:
    """Return every chart that can be made of what was collected."""
    made = (
        ("Accuracy and latency", trade_off.charts(collected, published)),
        ("Architectures", heads.charts(collected)),
        ("Plain against lowered", lowering.charts(collected)),
        ("Layer by layer", layers.charts(collected)),
        ("Operation by operation", operations.charts(collected)),
        ("What networks and attention kinds cost", seconds.charts(collected)),
        ("Precision", precision.charts(collected)),
        ("Learning curves", learning.charts(collected)),
    )
    return [Section(title=title, charts=_distinct(charts)) for title, charts in made if charts]


def write_page(
    path: Path, collected: Collected, sections: Sequence[Section], *, title: str = "mpcvit report"
) -> None:
    write_text(path, render(collected, sections, title=title))


def draw_table(table: Path) -> Path | None:
    """Draw the charts of one table as a PNG file beside it; return None if it has none."""
    charts = [chart for section in make_sections(collect([table])) for chart in section.charts]
    if not charts:
        return None
    write_figure(table.with_suffix(".png"), charts)
    return table.with_suffix(".png")


def render(
    collected: Collected, sections: Sequence[Section], *, title: str = "mpcvit report"
) -> str:
    """Return the whole page; it asks for nothing beyond itself."""
    others = provenance.other_tables(collected)
    titles = [section.title for section in sections]
    titles += ["Other measurements"] if others else []
    titles.append("Environment and provenance")
    return Template(_asset("page.html")).substitute(
        title=_escape(title),
        style=_asset("page.css"),
        script=_asset("page.js"),
        made=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        found=_escape(_count(collected)),
        links="\n".join(f'<li><a href="#{slug(one)}">{_escape(one)}</a></li>' for one in titles),
        notes=_notes(collected),
        sections="\n".join(_section(section) for section in sections),
        others=_other_section(others),
        provenance=_table(provenance.rows(collected), "environment"),
    )


def _distinct(charts: Sequence[Any]) -> tuple[Chart, ...]:
    """Give charts of the same name different addresses."""
    seen: dict[str, int] = {}
    found = []
    for chart in charts:
        seen[chart.id] = seen.get(chart.id, 0) + 1
        again = seen[chart.id] > 1
        found.append(replace(chart, id=f"{chart.id}-{seen[chart.id]}") if again else chart)
    return tuple(found)


def _section(section: Section) -> str:
    charts = "\n".join(_figure(chart) for chart in section.charts)
    return _titled(section.title, charts)


def _titled(title: str, content: str) -> str:
    return (
        f'<section aria-labelledby="{slug(title)}">\n'
        f'<h2 id="{slug(title)}">{_escape(title)}</h2>\n{content}\n</section>'
    )


def _figure(chart: Chart) -> str:
    return Template(_asset("chart.html")).substitute(
        id=chart.id,
        title=_escape(chart.title),
        caption=_escape(chart.caption),
        drawing=to_svg(chart),
        table=_table(chart.rows(), chart.id),
    )


def _other_section(tables: Sequence[tuple[str, list[Row]]]) -> str:
    if not tables:
        return ""
    shown = (f"<h3>{_escape(title)}</h3>\n{_table(rows, slug(title))}" for title, rows in tables)
    return _titled("Other measurements", "\n".join(shown))


def _table(rows: Sequence[Row], id: str) -> str:
    """Return a table that scrolls within its own box, with a button for its rows as CSV."""
    if not rows:
        return "<p>Nothing.</p>"
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f'<th scope="col">{_escape(column)}</th>' for column in columns)
    body = "\n".join(
        "<tr>" + "".join(_cell(row.get(column, "")) for column in columns) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Rows of {_escape(id)}">'
        f'<table id="{id}-rows"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
        f'\n<button type="button" class="csv" data-table="{id}-rows" data-file="{id}.csv">'
        "Download CSV</button>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f'<td class="number">{value:.6g}</td>'
    kind = ' class="number"' if isinstance(value, int) else ""
    return f"<td{kind}>{_escape(str(value))}</td>"


def _count(collected: Collected) -> str:
    counts = (
        (len(collected.networks), "trained network"),
        (len(collected.searches), "search"),
        (len(collected.records), "private run"),
        (len(collected.logs), "training log"),
        (len(collected.tables), "table"),
    )
    plurals = {"search": "searches"}
    parts = [
        f"{count} {one if count == 1 else plurals.get(one, one + 's')}"
        for count, one in counts
        if count
    ]
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)


def _notes(collected: Collected) -> str:
    unread = [f"Left out: {reason}" for reason in collected.skipped]
    items = [f"<li>{_escape(text)}</li>" for text in (*provenance.warnings(collected), *unread)]
    return f'<ul class="notes" aria-label="Notes">{"".join(items)}</ul>' if items else ""


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")

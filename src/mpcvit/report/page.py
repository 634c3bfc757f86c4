"""The report as one HTML page: its charts as data, tables beside them, style and script inside."""

import html
import json
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
from mpcvit.report.charts.chart import Chart, Row, slug, to_plain
from mpcvit.report.charts.trade_off import TradeOff
from mpcvit.report.findings import Findings
from mpcvit.storage import write_text

_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Charts on one question."""

    title: str
    charts: tuple[Chart, ...]


def make_sections(findings: Findings, published: Sequence[TradeOff]) -> list[Section]:
    """Every chart that the findings allow."""
    made = (
        ("Accuracy and latency", trade_off.charts(findings, published)),
        ("Architectures", heads.charts(findings)),
        ("Plain against lowered", lowering.charts(findings)),
        ("Layer by layer", layers.charts(findings)),
        ("Operation by operation", operations.charts(findings)),
        ("What networks and attention kinds cost", seconds.charts(findings)),
        ("Precision", precision.charts(findings)),
        ("Learning curves", learning.charts(findings)),
    )
    return [Section(title=title, charts=_distinct(charts)) for title, charts in made if charts]


def write_page(
    path: Path, findings: Findings, sections: Sequence[Section], *, title: str = "mpcvit report"
) -> None:
    write_text(path, render(findings, sections, title=title))


def render(findings: Findings, sections: Sequence[Section], *, title: str = "mpcvit report") -> str:
    """The whole page; it asks for nothing beyond itself."""
    charts = [chart for section in sections for chart in section.charts]
    others = provenance.other_tables(findings)
    titles = [section.title for section in sections]
    titles += ["Other measurements"] if others else []
    titles.append("Environment and provenance")
    return Template(_asset("page.html")).substitute(
        title=_escape(title),
        style=_asset("page.css"),
        script=_asset("page.js"),
        made=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        found=_escape(_count(findings)),
        links="\n".join(f'<li><a href="#{slug(one)}">{_escape(one)}</a></li>' for one in titles),
        notes=_notes(findings),
        sections="\n".join(_section(section) for section in sections),
        others=_other_section(others),
        provenance=_table(provenance.rows(findings), "environment"),
        # a closing tag inside a string would end the script
        data=json.dumps([to_plain(chart) for chart in charts]).replace("<", "\\u003c"),
    )


def _distinct(charts: Sequence[Any]) -> tuple[Chart, ...]:
    """Charts of two tables may have the same name, and an address must not."""
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
        table=_table(chart.rows(), chart.id),
    )


def _other_section(tables: Sequence[tuple[str, list[Row]]]) -> str:
    if not tables:
        return ""
    shown = (f"<h3>{_escape(title)}</h3>\n{_table(rows, slug(title))}" for title, rows in tables)
    return _titled("Other measurements", "\n".join(shown))


def _table(rows: Sequence[Row], id: str) -> str:
    """A table that scrolls within its own box, with a button for its rows as CSV."""
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


def _count(findings: Findings) -> str:
    counts = (
        (len(findings.networks), "trained network"),
        (len(findings.searches), "search"),
        (len(findings.records), "private run"),
        (len(findings.logs), "training log"),
        (len(findings.tables), "table"),
    )
    plurals = {"search": "searches"}
    parts = [
        f"{count} {one if count == 1 else plurals.get(one, one + 's')}"
        for count, one in counts
        if count
    ]
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)


def _notes(findings: Findings) -> str:
    unread = [f"Left out: {reason}" for reason in findings.skipped]
    items = [f"<li>{_escape(text)}</li>" for text in (*provenance.warnings(findings), *unread)]
    return f'<ul class="notes" aria-label="Notes">{"".join(items)}</ul>' if items else ""


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")

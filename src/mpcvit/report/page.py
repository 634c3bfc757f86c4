"""The report as one HTML page: charts as SVG, their rows in tables, style and script inside."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from mpcvit.errors import MissingExtraError
from mpcvit.progress import Progress, counted, quiet
from mpcvit.report import provenance, story
from mpcvit.report.charts import (
    heads,
    layers,
    learning,
    lowering,
    operations,
    precision,
    seconds,
    times,
    trade_off,
)
from mpcvit.report.charts.chart import Chart, Row, slug
from mpcvit.report.charts.trade_off import TradeOff
from mpcvit.report.collect import Collected, TableKind, collect
from mpcvit.report.figures import to_svg, write_figure
from mpcvit.report.parties import draw_parties
from mpcvit.secure.learnt import who_learns
from mpcvit.storage import write_text

_ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True, kw_only=True)
class Section:
    """Charts on one question, and a sentence that answers or explains it."""

    title: str
    words: str
    charts: tuple[Chart, ...]


def make_sections(collected: Collected, published: Sequence[TradeOff] = ()) -> list[Section]:
    """Return every chart that can be made of what was collected, in the order of the story."""
    made = (
        (
            "Accuracy against seconds",
            "Each network by what it gets right and what a private image takes.",
            trade_off.charts(collected, published),
        ),
        (
            "Where the seconds go",
            "An exchange costs half a round trip, so a network with few of them is fast.",
            [*times.charts(collected), *operations.charts(collected)],
        ),
        (
            "What the search chose",
            "Layer by layer: the letter in a square says what this place of the network computes.",
            heads.charts(collected),
        ),
        (
            "Learning curves",
            "How accuracy and loss moved while the networks were trained.",
            learning.charts(collected),
        ),
        (
            "Plain against lowered",
            "The same network as it was trained, and as `mpcvit lower` made it.",
            lowering.charts(collected),
        ),
        ("Layer by layer", "What each layer of a network costs.", layers.charts(collected)),
        (
            "What networks and attention kinds cost",
            "Benchmarks with random weights, beside the paper's numbers.",
            seconds.charts(collected),
        ),
        ("Precision", "What fixed point loses.", precision.charts(collected)),
    )
    return [
        Section(title=title, words=words, charts=_distinct(charts))
        for title, words, charts in made
        if charts
    ]


def write_page(
    path: Path,
    collected: Collected,
    sections: Sequence[Section],
    *,
    title: str = "mpcvit report",
    progress: Progress = quiet,
) -> None:
    write_text(path, render(collected, sections, title=title, progress=progress))


def draw_table(table: Path) -> Path | None:
    """Draw the charts of one table as a PNG file beside it; return None if it has none."""
    charts = [chart for section in make_sections(collect([table])) for chart in section.charts]
    if not charts:
        return None
    write_figure(table.with_suffix(".png"), charts)
    return table.with_suffix(".png")


def render(
    collected: Collected,
    sections: Sequence[Section],
    *,
    title: str = "mpcvit report",
    progress: Progress = quiet,
) -> str:
    """Return the whole page; it asks for nothing beyond itself."""
    charts = [chart for section in sections for chart in section.charts]
    drawings = {chart.id: _drawing(chart) for chart in counted("drawing", charts, progress)}
    parts = [
        ("The pictures", _pictures(collected)),
        ("Who learnt what", _parties(collected)),
        *((section.title, _charts(section, drawings)) for section in sections),
        ("Other measurements", _others(collected)),
        ("Warnings", _warnings(collected)),
        ("Where the numbers come from", _table(provenance.rows(collected), "environment")),
    ]
    shown = [(name, content) for name, content in parts if content]
    return Template(_asset("page.html")).substitute(
        title=_escape(title),
        style=_asset("page.css"),
        script=_asset("page.js"),
        made=f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
        found=_escape(_count(collected)),
        opening=_opening(collected, title),
        links="\n".join(
            f'<li><a href="#{slug(name)}">{_escape(name)}</a></li>' for name, _ in shown
        ),
        sections="\n".join(_titled(name, content) for name, content in shown),
    )


def _opening(collected: Collected, title: str) -> str:
    """Return the first lines: a sentence and a number, or the title if there is no number."""
    found = story.headline(collected)
    if found is None:
        return f"<h1>{_escape(title)}</h1>"
    return (
        f'<p class="title">{_escape(title)}</p>\n<h1>{_escape(found.sentence)}</h1>\n'
        f'<div class="lead"><p class="big">{_escape(found.number)}</p>'
        f"<ul>{''.join(f'<li>{_escape(fact)}</li>' for fact in found.facts)}</ul></div>"
    )


def _pictures(collected: Collected) -> str:
    pictures = story.pictures(collected)
    if not pictures:
        return ""
    cards = "\n".join(_card(picture) for picture in pictures)
    left = story.left_out(collected)
    words = (
        "Below each picture: its true class, then what each network said privately, ✓ if that is "
        "right, and the seconds it took."
    )
    more = f"<p>{left} more are in the table.</p>" if left else ""
    tables = collected.tables_of(TableKind.PREDICTIONS)
    rows = [dict(row) for table in tables for row in table.value.rows]
    return (
        f'<p class="words">{words}</p>\n<ul class="pictures">\n{cards}\n</ul>\n{more}'
        f"{_folded(rows, 'predictions')}"
    )


def _card(picture: story.Picture) -> str:
    image = '<div class="picture missing">no preview</div>'
    if picture.source:
        image = f'<img class="picture" src="{picture.source}" alt="{_escape(picture.name)}">'
    lines = "".join(_answer(answer) for answer in picture.answers)
    return (
        f'<li class="card">{image}<p class="truth"><span>truth</span> {_escape(picture.truth)}</p>'
        f"<dl>{lines}</dl></li>"
    )


def _answer(answer: story.Answer) -> str:
    if not answer.predicted:
        return f'<dt>{_escape(answer.run)}</dt><dd class="left-out">not run</dd>'
    mark = "✓ " if answer.is_right else "✗ "
    seconds = "" if answer.seconds is None else f" <span>{answer.seconds:.1f} s</span>"
    return f"<dt>{_escape(answer.run)}</dt><dd>{mark}{_escape(answer.predicted)}{seconds}</dd>"


def _parties(collected: Collected) -> str:
    """Draw who took part in the private runs, once for each way of trusting each other."""
    drawn: dict[str, list[str]] = {}
    for found in collected.records:
        record = found.value
        trust = f"Whom both owners trust: {record.profile.trust}."
        drawing = draw_parties(who_learns(record.profile, record.reveal))
        drawn.setdefault(f"{drawing}\n<p>{_escape(trust)}</p>", []).append(found.name)
    several = len(drawn) > 1
    return "\n".join(
        (f"<h3>{_escape(', '.join(dict.fromkeys(names)))}</h3>" if several else "") + drawing
        for drawing, names in drawn.items()
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


def _charts(section: Section, drawings: Mapping[str, str]) -> str:
    charts = "\n".join(_figure(chart, drawings[chart.id]) for chart in section.charts)
    return f'<p class="words">{_escape(section.words)}</p>\n{charts}'


def _titled(title: str, content: str) -> str:
    return (
        f'<section aria-labelledby="{slug(title)}">\n'
        f'<h2 id="{slug(title)}">{_escape(title)}</h2>\n{content}\n</section>'
    )


def _figure(chart: Chart, drawing: str) -> str:
    return Template(_asset("chart.html")).substitute(
        id=chart.id,
        title=_escape(chart.title),
        caption=_escape(chart.caption),
        drawing=drawing,
        table=_folded(chart.rows(), chart.id),
    )


def _drawing(chart: Chart) -> str:
    """Return a chart as SVG, for desks and for phones; without matplotlib, only its rows exist."""
    try:
        return to_svg(chart) + to_svg(chart, narrow=True)
    except MissingExtraError as missing:
        return f"<p>Not drawn: {_escape(str(missing))}.</p>"


def _folded(rows: Sequence[Row], id: str) -> str:
    return f"<details><summary>Show the numbers</summary>\n{_table(rows, id)}\n</details>"


def _others(collected: Collected) -> str:
    return "\n".join(
        f"<h3>{_escape(title)}</h3>\n{_table(rows, slug(title))}"
        for title, rows in provenance.other_tables(collected)
    )


def _table(rows: Sequence[Row], id: str) -> str:
    """Return a table that scrolls within its own box, with a button for its rows as CSV."""
    if not rows:
        return "<p>Nothing.</p>"
    columns = list(dict.fromkeys(column for row in rows for column in row))
    head = "".join(f'<th scope="col">{_escape(column)}</th>' for column in columns)
    body = "\n".join(
        "<tr>" + "".join(_cell(column, row.get(column, "")) for column in columns) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Rows of {_escape(id)}">'
        f'<table id="{id}-rows"><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table></div>'
        f'\n<button type="button" class="csv" data-table="{id}-rows" data-file="{id}.csv">'
        "Download CSV</button>"
    )


def _cell(column: str, value: Any) -> str:
    """Return a cell; printed, where a wide table has no room, it names its column."""
    kind = ' class="number"' if isinstance(value, int | float) else ""
    text = f"{value:.6g}" if isinstance(value, float) else _escape(str(value))
    return f'<td{kind} data-column="{_escape(column)}">{text}</td>'


def _count(collected: Collected) -> str:
    counts = (
        (len(collected.networks), "trained network", "s"),
        (len(collected.searches), "search", "es"),
        (len(collected.records), "private run", "s"),
        (len(collected.logs), "training log", "s"),
        (len(collected.tables), "table", "s"),
    )
    parts = [f"{count} {one}{ending * (count > 1)}" for count, one, ending in counts if count]
    return ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else "".join(parts)


def _warnings(collected: Collected) -> str:
    unread = [f"Left out: {reason}" for reason in collected.skipped]
    items = [f"<li>{_escape(text)}</li>" for text in (*provenance.warnings(collected), *unread)]
    return f'<ul class="notes">{"".join(items)}</ul>' if items else ""


def _escape(text: str) -> str:
    return html.escape(text, quote=True)


@cache
def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")

"""`mpcvit report` and `mpcvit compare`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.latency import LatencyTable
from mpcvit.cli import app, complete
from mpcvit.cli.options import AsJson, LatencyFile
from mpcvit.cli.show import print_json, print_table
from mpcvit.errors import UserError
from mpcvit.storage import SMALL_BYTES, require_room, require_writable

if TYPE_CHECKING:
    from mpcvit.report.charts.chart import Chart


@app.command()
def report(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, checkpoints, records of private runs and CSV tables. Folders are "
            "searched for them.",
            autocompletion=complete.run_folder,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Page to write (HTML).")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write every chart as PNG and SVG to this folder."),
    ] = None,
    latency: LatencyFile = None,
    as_json: AsJson = False,
) -> None:
    """Write one HTML page from any set of runs, records and tables.

    The page shows accuracy against latency beside the paper's points, and what
    each head became. It shows costs by layer and operation, plain and lowered,
    learning curves, and the origin of every number. It is one file, without links.

    Example: mpcvit report runs/digits results/secure --out report.html --figures figures
    """
    from mpcvit.report.figures import write_figures
    from mpcvit.report.live import counting

    require_writable(out)
    if figures is not None:
        require_room(figures, SMALL_BYTES)
    table = None if latency is None else LatencyTable.load(latency)
    charts, skipped = write_report(places, out, title="mpcvit report", latency=table)
    with counting() as progress:
        drawn = [] if figures is None else write_figures(figures, charts, progress)
    for reason in skipped:
        typer.echo(f"left out: {reason}", err=True)
    if as_json:
        print_json(
            {
                "report": str(out),
                "charts": [chart.id for chart in charts],
                "figures": [str(path) for path in drawn],
                "skipped": list(skipped),
            }
        )
        return
    print(f"charts   {len(charts)}")
    if figures is not None:
        print(f"figures  {figures}")
    print(f"report   {out}")


def write_report(
    places: Sequence[Path],
    page: Path,
    *,
    title: str,
    latency: LatencyTable | None = None,
) -> "tuple[list[Chart], tuple[str, ...]]":
    """Write a page of runs, and return its charts, and what was left out and why."""
    from mpcvit.experiments.published import published_trade_offs
    from mpcvit.report.collect import collect
    from mpcvit.report.live import counting
    from mpcvit.report.page import make_sections, write_page

    with counting() as progress:
        collected = collect(places, latency, progress)
        if collected.is_empty:
            raise UserError("none of these places holds a run, a record or a table")
        sections = make_sections(collected, published_trade_offs())
        write_page(page, collected, sections, title=title, progress=progress)
    return [chart for section in sections for chart in section.charts], collected.skipped


@app.command()
def compare(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Run folders or checkpoints.",
            autocompletion=complete.run_folder,
        ),
    ],
    latency: LatencyFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare trained networks: accuracy, seconds, and the heads and GeLU that remain.

    Seconds are modelled from each network's own shape, or from --latency. A
    star marks networks that no other beats in both accuracy and seconds.

    Example: mpcvit compare runs/teacher runs/mpcvit-0.5
    """
    from mpcvit.report.networks import best_trade_offs, read_networks

    table = None if latency is None else LatencyTable.load(latency)
    rows, empty = read_networks(places, table)
    for place in empty:
        typer.echo(f"no trained network in {place}", err=True)
    if not rows:
        raise UserError("none of these places holds a trained network")
    rows.sort(key=lambda row: row.modelled_s)
    best, source = best_trade_offs(rows), rows[0].latency_source
    if as_json:
        print_json([{**asdict(row), "best": row.name in best} for row in rows])
        return
    shown = [
        asdict(row)
        | {"star": "* " if row.name in best else "  ", "gelu_percent": 100 * row.gelu_share}
        | ({} if row.top1 is None else {"top1_percent": 100 * row.top1})
        for row in rows
    ]
    print_table(
        shown,
        {
            "network": "{star}{name}",
            "top-1 %": "{top1_percent:.2f}",
            "modelled s": "{modelled_s:.2f}",
            "exchanges": "{exchanges:,.0f}",
            "MB sent": "{sent_mb:.1f}",
            "heads": "{heads}",
            "GeLU %": "{gelu_percent:.0f}",
            "epochs": "{epochs:d}",
            "seed": "{seed:d}",
        },
    )
    print(source)

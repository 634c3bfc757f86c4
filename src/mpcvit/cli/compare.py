"""`mpcvit compare`: trained networks in one table."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson, print_json
from mpcvit.cli.search import LatencyFile


@app.command()
def compare(
    places: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders or checkpoints.")
    ],
    latency: LatencyFile = None,
    figure: Annotated[
        Path | None, typer.Option(help="Also draw accuracy against seconds (PNG).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare trained networks: accuracy, seconds, and what remains of them.

    Seconds are modelled from each network's own shape, or from --latency. A
    star marks networks that no other beats in both accuracy and seconds.

    Example: mpcvit compare runs/teacher runs/mpcvit-0.5
    """
    from rich.console import Console
    from rich.table import Table

    from mpcvit.artifacts.latency import LatencyTable
    from mpcvit.errors import UserError
    from mpcvit.report.charts.trade_off import TradeOff, trade_off_chart
    from mpcvit.report.figures import write_figure
    from mpcvit.report.networks import best_trade_offs, read_networks

    table = None if latency is None else LatencyTable.load(latency)
    rows, empty = read_networks(places, table)
    for place in empty:
        typer.echo(f"no trained network in {place}", err=True)
    if not rows:
        raise UserError("none of these places holds a trained network")
    rows.sort(key=lambda row: row.modelled_s)
    best, source = best_trade_offs(rows), rows[0].latency_source
    if figure is not None:
        points = [point for row in rows for point in TradeOff.of_network(row, row.name)]
        write_figure(figure, [trade_off_chart("", points)])
    if as_json:
        print_json([{**asdict(row), "best": row.name in best} for row in rows])
        return
    drawn = Table(box=None, pad_edge=False)
    drawn.add_column("network", overflow="fold")
    for title in ("top-1 %", "modelled s", "exchanges", "MB sent"):
        drawn.add_column(title, justify="right")
    drawn.add_column("heads")
    for title in ("GeLU %", "epochs", "seed"):
        drawn.add_column(title, justify="right")
    for row in rows:
        drawn.add_row(
            ("* " if row.name in best else "  ") + row.name,
            "–" if row.top1 is None else f"{100 * row.top1:.2f}",
            f"{row.modelled_s:.2f}",
            f"{row.exchanges:,.0f}",
            f"{row.sent_mb:.1f}",
            row.heads,
            f"{100 * row.gelu_share:.0f}",
            "–" if row.epochs is None else str(row.epochs),
            "–" if row.seed is None else str(row.seed),
        )
    console = Console(width=None if Console().is_terminal else 200, highlight=False)
    console.print(drawn)
    console.print(source, soft_wrap=True)

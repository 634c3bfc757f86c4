"""`mpcvit compare`: trained networks in one table."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.search import LatencyFile
from mpcvit.cli.show import print_json, print_table


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

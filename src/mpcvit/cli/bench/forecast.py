"""`mpcvit bench forecast`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import DEALER_PROFILE, EXAMPLES, Out, is_delivered, known_networks
from mpcvit.cli.options import AsJson, Overrides
from mpcvit.cli.show import print_table


@bench.command()
def forecast(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CONFIG...", help="Shapes: names or TOML files. [default: cifar10]"),
    ] = None,
    overrides: Overrides = None,
    only: Annotated[
        str, typer.Option("--networks", help="Networks of the paper, between commas.")
    ] = "softmax",
    forms: Annotated[
        str, typer.Option(help="lowered, plain, or both between commas.")
    ] = "lowered,plain",
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 1,
    profile: Annotated[str, typer.Option(help="Profile of the runs.")] = DEALER_PROFILE,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare what `mpcvit estimate` forecasts with runs: exchanges, bytes, seconds and memory.

    Weights are random. Memory is that of the party that took the most.

    Example: mpcvit bench forecast deit-tiny --set model.depth=2 --out forecast.csv
    """
    from mpcvit.bench.forecast import FORMS, bench_forecast
    from mpcvit.bench.lowered import read_reference
    from mpcvit.bench.networks import paper_networks
    from mpcvit.report.live import counting

    settings = list(overrides or [])
    models = {path.stem: load_config(path, settings).model for path in configs or [Path("cifar10")]}
    with counting() as progress:
        rows = bench_forecast(
            models,
            load_profile(profile),
            [read_reference(path) for path in EXAMPLES],
            networks=known_networks(only, list(paper_networks(next(iter(models.values()))))),
            forms=known_networks(forms, list(FORMS)),
            batch_size=batch_size,
            progress=progress,
        )
    if is_delivered(rows, out, as_json):
        return
    columns = {"shape": "{config}", "network": "{network}", "form": "{form}"}
    pairs = {
        "exchanges": ("exchanges", "forecast_exchanges", ",.0f"),
        "MB": ("sent_mb", "forecast_mb", ",.0f"),
        "s": ("measured_s", "forecast_s", ".1f"),
    }
    for title, (found, expected, form) in pairs.items():
        columns |= {title: f"{{{found}:{form}}}", f"{title}, forecast": f"{{{expected}:{form}}}"}
    columns |= {"memory, forecast / found": "{memory_ratio:.2f}"}
    print_table(rows, columns)

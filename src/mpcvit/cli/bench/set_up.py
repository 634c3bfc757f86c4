"""`mpcvit bench set-up`."""

from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    DEALER_PROFILE,
    EXAMPLES,
    Out,
    is_delivered,
    known_networks,
)
from mpcvit.cli.options import AsJson, ConfigFile, Overrides
from mpcvit.cli.show import print_table


@bench.command("set-up")
def set_up(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    only: Annotated[
        str, typer.Option("--networks", help="Networks of the paper, between commas.")
    ] = "softmax",
    forms: Annotated[
        str, typer.Option(help="Forms of the networks, between commas: plain, lowered.")
    ] = "lowered",
    profile: Annotated[str, typer.Option(help="Profile of the runs.")] = DEALER_PROFILE,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a session takes before its first image, with an empty and a full cache.

    Seconds of `compile` include the rehearsal. CPU seconds are of all processes.

    Example: mpcvit bench set-up --networks softmax,scaling --out results/secure/set-up.csv
    """
    from mpcvit.bench.lowered import read_reference
    from mpcvit.bench.networks import paper_networks
    from mpcvit.bench.set_up import bench_set_up
    from mpcvit.report.live import counting

    config = load_config(config_file, list(overrides or []))
    with counting() as progress:
        rows = bench_set_up(
            config.model,
            load_profile(profile),
            [read_reference(path) for path in EXAMPLES],
            networks=known_networks(only, list(paper_networks(config.model))),
            forms=known_networks(forms, ["plain", "lowered"]),
            progress=progress,
        )
    if is_delivered(rows, out, as_json):
        return
    print_table(
        rows,
        {
            **{"network": "{network}", "form": "{form}", "cache": "{cache}"},
            **{"set-up s": "{set_up_s:.1f}", "compile s": "{compile_s:.1f}"},
            **{"image s": "{image_s:.1f}", "CPU s": "{cpu_s:.1f}"},
            **{"exchanges": "{exchanges:,}", "MB": "{sent_mb:,.0f}", "peak MB": "{peak_mb:,}"},
        },
    )

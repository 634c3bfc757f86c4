"""`mpcvit bench threads`."""

from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import complete
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    DEALER_PROFILE,
    EXAMPLES,
    SECONDS_AN_IMAGE,
    Out,
    is_delivered,
    known_networks,
)
from mpcvit.cli.options import AsJson, ConfigFile, Overrides
from mpcvit.cli.show import print_table


@bench.command()
def threads(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    only: Annotated[
        str,
        typer.Option(
            "--networks",
            help="Networks of the paper, between commas.",
            autocompletion=complete.networks,
        ),
    ] = "relu_softmax,scaling",
    profile: Annotated[
        str, typer.Option(help="Profile of the runs.", autocompletion=complete.profile)
    ] = DEALER_PROFILE,
    rounds: Annotated[int, typer.Option(min=1, help="Runs with each limit, in turns.")] = 3,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare SPU's four threads per product with as many as the parties have cores for.

    The networks are lowered. Seconds are those of the last image of a session.

    Example: mpcvit bench threads --out results/secure/threads.csv
    """
    from mpcvit.bench.lowered import read_reference
    from mpcvit.bench.networks import paper_networks
    from mpcvit.bench.threads import bench_threads
    from mpcvit.report.live import counting

    config = load_config(config_file, list(overrides or []))
    with counting() as progress:
        rows = bench_threads(
            config.model,
            load_profile(profile),
            [read_reference(path) for path in EXAMPLES],
            networks=known_networks(only, list(paper_networks(config.model))),
            rounds=rounds,
            progress=progress,
        )
    if is_delivered(rows, out, as_json):
        return
    columns = {"network": "{network}", "threads": "{threads:d}"}
    print_table(rows, {**columns, **SECONDS_AN_IMAGE, "of SPU's 4": "{of_spu:.3f}"})

"""`mpcvit bench lowering`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    DEALER_PROFILE,
    EXAMPLES,
    Measure,
    TableOut,
    beside_paper,
    known_networks,
    print_rows,
)
from mpcvit.cli.options import (
    AsJson,
    ConfigFile,
    Overrides,
    parse_whole_numbers,
)


@bench.command()
def lowering(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    profiles: Annotated[
        str, typer.Option("--profiles", help="Profiles, between commas.")
    ] = DEALER_PROFILE,
    only: Annotated[
        str, typer.Option("--networks", help="Networks of the paper, between commas.")
    ] = "relu_softmax,mpcvit-0.7,mpcvit-0.1,scaling",
    batch_sizes: Annotated[str, typer.Option(help="Images at a time, between commas.")] = "1",
    like: Annotated[
        list[Path],
        typer.Option(
            help="Lowered programs, or their program.json, whose approximations are used: of the "
            "first that has the kinds of a network. Repeat for more."
        ),
    ] = EXAMPLES,
    stage: Annotated[
        str | None, typer.Option(help="Look at one stage alone, such as 'block 0'.")
    ] = None,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Plain against lowered, in one run: exchanges, bytes and seconds of the same networks.

    Seconds are per image, and of a session of many, in which the masks of weights
    are reused after a set-up; the table also tells what that takes, and from
    which batch on it has paid. Weights are random; the approximations and their
    intervals are those of a trained network.

    Example: mpcvit bench lowering --measure --out results/secure/lowering.csv
    """
    from mpcvit.bench.lowered import bench_lowering, read_reference
    from mpcvit.bench.networks import paper_networks
    from mpcvit.experiments.published import published
    from mpcvit.report.live import counting

    config = load_config(config_file, list(overrides or []))
    settings = {name.strip(): load_profile(name.strip()) for name in profiles.split(",")}
    names = known_networks(only, list(paper_networks(config.model)))
    with counting() as progress:
        rows = bench_lowering(
            config.model,
            settings,
            [read_reference(path) for path in like],
            networks=names,
            batch_sizes=parse_whole_numbers(batch_sizes, "--batch-sizes"),
            stage=stage,
            measure=measure,
            progress=progress,
        )
    if stage is None:  # the paper times whole networks
        rows = beside_paper(rows, "network", config.name, "trade-off", published)
    print_rows(rows, "network", out, as_json)

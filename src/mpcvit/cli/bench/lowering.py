"""`mpcvit bench lowering`."""

from functools import partial
from typing import Annotated

import typer

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.record import Reveal
from mpcvit.cli import complete
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    DEALER_PROFILE,
    Architectures,
    Measure,
    Profiles,
    TableOut,
    deliver_table,
    known_names,
    load_profiles,
    shipped_references,
)
from mpcvit.cli.options import AsJson, ConfigFile, Overrides, parse_whole_numbers
from mpcvit.cli.run import RevealOption


@bench.command()
def lowering(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    profiles: Profiles = DEALER_PROFILE,
    only: Annotated[
        str,
        typer.Option(
            "--networks",
            help="Networks of the paper, `polynomial`, or those of --arch, between commas.",
            autocompletion=complete.networks,
        ),
    ] = "relu_softmax,mpcvit-0.7,mpcvit-0.1,scaling,polynomial",
    architectures: Architectures = None,
    batch_sizes: Annotated[str, typer.Option(help="Images at a time, between commas.")] = "1",
    reveal: RevealOption = Reveal.LOGITS,
    stage: Annotated[
        str | None, typer.Option(help="One stage to look at, such as 'block 0'.")
    ] = None,
    lowered_only: Annotated[
        bool, typer.Option("--lowered-only", help="Leave out the networks as written.")
    ] = False,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Compare networks as written and lowered, in one run: exchanges, bytes and seconds.

    Seconds are per image, in a session of many that reuses the masks of weights
    after a set-up. The file also has the cost of the set-up, and from which batch
    on it has paid. Weights are random. The approximations and their intervals are
    those of a trained network.

    Example: mpcvit bench lowering --measure --out results/secure/lowering.csv
    """
    from mpcvit.bench.lowered import bench_lowering
    from mpcvit.bench.networks import paper_networks, polynomial_network

    config = load_config(config_file, overrides or ())
    known = {
        **paper_networks(config.model),
        "polynomial": polynomial_network(config.model),
        **{path.stem: Architecture.load(path) for path in architectures or ()},
    }
    make = partial(
        bench_lowering,
        config.model,
        load_profiles(profiles),
        shipped_references(),
        networks={name: known[name] for name in known_names(only, known)},
        batch_sizes=parse_whole_numbers(batch_sizes, "--batch-sizes"),
        reveal=reveal,
        stage=stage,
        measure=measure,
        lowered_only=lowered_only,
    )
    # the paper times whole networks
    paper = (config.name, "trade-off") if stage is None else None
    deliver_table(make, "network", out, as_json, paper=paper)

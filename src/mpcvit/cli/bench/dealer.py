"""`mpcvit bench dealer`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import complete
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    EXAMPLES,
    Out,
    is_delivered,
    known_networks,
)
from mpcvit.cli.options import (
    AsJson,
    ConfigFile,
    parse_whole_numbers,
)
from mpcvit.cli.run import ProfileName


@bench.command()
def dealer(
    config_file: ConfigFile = CIFAR,
    network: Annotated[
        str, typer.Option(help="Network of the paper.", autocompletion=complete.network)
    ] = "relu_softmax",
    like: Annotated[
        Path,
        typer.Option(
            show_default="one of the package",
            help="Lowered program, or its program.json, whose approximations are used.",
        ),
    ] = EXAMPLES[0],
    profile: ProfileName = "semi2k-dealer-wan",
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each, in turns.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="For the dealer alone.")] = 6,
    workers: Annotated[
        str, typer.Option(help="Processes of the dealer alone, between commas.")
    ] = "1,2",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a dealer adds to an inference, and how many inferences it can serve.

    The network runs as it is written, and lowered. Runs with the dealer and with
    the first party in its place take turns, so that both see the same machine;
    rows of the latter carry a warning. Then dealers of one and more processes
    are asked for its material alone.

    Example: mpcvit bench dealer --rounds 3 --out results/secure/dealer.csv
    """
    settings, config = load_profile(profile), load_config(config_file).model
    counts = parse_whole_numbers(workers, "--workers")

    from mpcvit.bench.dealer import bench_dealer
    from mpcvit.bench.lowered import lower_with_plan, plan_for, read_reference
    from mpcvit.bench.networks import paper_networks, random_checkpoint
    from mpcvit.lowering.engine import choose_engine
    from mpcvit.report.live import counting

    (name,) = known_networks(network, list(paper_networks(config)))
    architecture = paper_networks(config)[name]
    plan = plan_for(architecture, [read_reference(like)])
    models = (
        random_checkpoint(config, architecture),
        lower_with_plan(plan, config, architecture, choose_engine(settings)),
    )
    with counting() as progress:
        rows = bench_dealer(
            models, settings, rounds=rounds, jobs=jobs, workers=counts, progress=progress
        )
    if is_delivered(rows, out, as_json):
        return
    for row in rows:
        shown = (f"{name} {value}" for name, value in row.items() if value != "")
        print("  ".join(list(shown)[:14]))
        if row["warning"]:
            print(f"  {row['warning']}")

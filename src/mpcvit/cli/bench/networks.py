"""`mpcvit bench` of networks as they are written: the paper's tables and figures."""

from functools import partial
from typing import Annotated

import typer

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import complete
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    PAPER_PROFILE,
    TINY_IMAGENET,
    Architectures,
    Measure,
    Out,
    Profiles,
    TableOut,
    deliver,
    deliver_table,
    known_names,
    load_profiles,
)
from mpcvit.cli.options import AnyModelFile, AsJson, ConfigFile, DataFolder
from mpcvit.cli.run import BatchSize, ProfileName
from mpcvit.cli.running import load_images
from mpcvit.cli.show import print_json, print_pairs
from mpcvit.kinds.table import KINDS, parse_kinds
from mpcvit.storage import require_writable


@bench.command()
def attention(
    config_file: ConfigFile = CIFAR,
    profiles: Profiles = PAPER_PROFILE,
    kinds: Annotated[
        str | None,
        typer.Option(
            help=f"Attention kinds, between commas; all unless given: {', '.join(KINDS)}."
        ),
    ] = None,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Count or time one attention layer of each kind, under one profile or several in turns.

    Example: mpcvit bench attention --measure --out results/secure/attention.csv
    """
    from mpcvit.bench.paper_tables import bench_attention

    config = load_config(config_file)
    chosen = () if kinds is None else parse_kinds(kinds)
    make = partial(
        bench_attention, config.model, load_profiles(profiles), kinds=chosen, measure=measure
    )
    paper = config.name, "attention-variants"
    deliver_table(make, "attention", out, as_json, paper=paper)


@bench.command()
def network(
    config_file: ConfigFile = CIFAR,
    profiles: Profiles = PAPER_PROFILE,
    only: Annotated[
        str | None,
        typer.Option(
            "--networks",
            help="Networks to measure, between commas; all unless given.",
            autocompletion=complete.networks_as_written,
        ),
    ] = None,
    architectures: Architectures = None,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Count or time whole networks as they are written: every one that the paper times.

    Several profiles take turns, network by network. Weights are random, because the
    cost does not depend on them. Heads and tokens are chosen at random too, unless
    `--arch` gives searched ones.

    Example: mpcvit bench network --networks softmax,scaling --out results/secure/network.csv
    """
    from mpcvit.bench.networks import networks_as_written
    from mpcvit.bench.paper_tables import bench_network

    config = load_config(config_file)
    searched = {path.stem: Architecture.load(path) for path in architectures or ()}
    known = [*networks_as_written(config.model), *searched]
    make = partial(
        bench_network,
        config.model,
        load_profiles(profiles),
        only=[] if only is None else known_names(only, known),
        measure=measure,
        searched=searched,
    )
    deliver_table(make, "network", out, as_json, paper=(config.name, "trade-off"))


@bench.command()
def layers(
    config_file: ConfigFile = TINY_IMAGENET,
    profile: ProfileName = PAPER_PROFILE,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Count the cost of every layer: softmax, ReLU softmax, and half of the heads mixed.

    Example: mpcvit bench layers --out results/secure/layers.csv
    """
    from mpcvit.bench.paper_tables import bench_layers

    make = partial(bench_layers, load_config(config_file).model, load_profile(profile))
    deliver_table(make, "network", out, as_json)


@bench.command()
def breakdown(
    config_file: ConfigFile = CIFAR,
    profiles: Profiles = "semi2k-wan,cheetah-wan",
    most_tokens: Annotated[
        int, typer.Option(help="Most tokens of a block; larger blocks take long.")
    ] = 257,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Show where seconds go: a block by heads and tokens, a network, softmax by its parts.

    Cheetah's exchanges are no rounds, so its seconds are measured or absent.

    Example: mpcvit bench breakdown --profiles cheetah-wan --out results/secure/breakdown.csv
    """
    from mpcvit.bench.paper_tables import bench_breakdown

    model, settings = load_config(config_file).model, load_profiles(profiles)
    make = partial(bench_breakdown, model, settings, most_tokens=most_tokens, measure=measure)
    deliver_table(make, "part", out, as_json)


@bench.command()
def precision(
    profile: ProfileName = PAPER_PROFILE,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Measure the relative error of softmax and ReLU softmax by their input's variance.

    Example: mpcvit bench precision --out results/secure/precision.csv
    """
    from mpcvit.bench.paper_tables import bench_precision

    columns = {
        "attention": "{attention}",
        "variance": "{variance:g}",
        "relative error": "{relative_error:.2e}",
        "largest error": "{largest_error:.2e}",
    }
    deliver(partial(bench_precision, load_profile(profile)), columns, out, as_json, drawn=True)


@bench.command()
def agreement(
    model_file: AnyModelFile,
    data: DataFolder = None,
    profile: ProfileName = PAPER_PROFILE,
    images: Annotated[int, typer.Option(min=1, help="Test images to classify.")] = 64,
    batch_size: BatchSize = 16,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Threads of one process, without a network.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Count how often private and plaintext predictions agree on real test images.

    A lowered program is compared with its emulation.

    Example: mpcvit bench agreement runs/digits/model.safetensors --profile cheetah --simulate
    """
    from mpcvit.artifacts.provenance import write_rows
    from mpcvit.bench.paper_tables import bench_agreement
    from mpcvit.lowering.program import load_model
    from mpcvit.report.live import counting

    if out is not None:
        require_writable(out)
    model, settings = load_model(model_file), load_profile(profile)
    with counting() as progress:
        row = bench_agreement(
            model,
            load_images(model, data, "test", progress),
            settings,
            images=images,
            batch_size=batch_size,
            simulate=simulate,
            progress=progress,
        )
    row = {"model": str(model_file), **row}
    if out is not None:
        write_rows(out, [row])
    if as_json:
        print_json(row)
        return
    print_pairs(
        {
            "agree": f"{row['agree']} of {row['images']} images",
            "right": f"{row['plain_right']} in plaintext, {row['private_right']} privately",
            "logits": f"off by at most {row['largest_logit_error']}, of {row['logit_range']}",
            "cost": f"{row['exchanges']:,} exchanges, {row['sent_mb']:,.1f} MB sent",
        }
    )
    if row["warning"]:
        print(row["warning"])

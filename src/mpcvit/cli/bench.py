"""`mpcvit bench`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.cli import app
from mpcvit.cli.options import (
    AnyModelFile,
    AsJson,
    ConfigFile,
    DataFolder,
    Overrides,
    parse_whole_numbers,
    print_json,
)
from mpcvit.cli.private import ProfileName
from mpcvit.cli.running import load_test_images
from mpcvit.config import load_config
from mpcvit.errors import UserError, nearest
from mpcvit.profile import load_profile

if TYPE_CHECKING:
    from mpcvit.config import ModelConfig

bench = typer.Typer(
    no_args_is_help=True,
    help="Measure this machine, and private inference on it.\n\n"
    "Example: mpcvit bench network --networks softmax,scaling",
)
app.add_typer(bench, name="bench")

CIFAR = Path("configs/cifar10.toml")
TINY_IMAGENET = Path("configs/tiny-imagenet.toml")
PAPER_PROFILE = "semi2k-wan"
EXAMPLES = [
    Path("results/cifar10-tiny") / f"{kind}-program.json"
    for kind in ("relu_softmax", "softmax", "linformer", "quad2", "the_x")
]
_PLACES = ("form", "batch", "table", "value", "layer")  # columns that tell rows apart

Out = Annotated[Path | None, typer.Option("--out", help="CSV file for the rows.")]
TableOut = Annotated[
    Path | None,
    typer.Option("--out", help="CSV file; a figure of the same name goes beside it."),
]
Measure = Annotated[
    bool,
    typer.Option(
        "--measure", help="Also run in processes through the emulated network, and time it."
    ),
]


@bench.command()
def training(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds per measurement.")] = 10,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Images per second of training, search, their input pipeline and evaluation.

    Where PyTorch is installed, a PyTorch network of the same shape is measured
    in turns with ours.

    Example: mpcvit bench training configs/cifar10.toml --out results/training-speed.csv
    """
    from mpcvit.cores import split_cpu
    from mpcvit.records import write_rows

    config = load_config(config_file, list(overrides or []))
    split_cpu(config.train.batch_size)

    from mpcvit.bench.training import bench_training
    from mpcvit.report.live import counting

    with counting() as progress:
        rows = bench_training(config, rounds=rounds, progress=progress)
    if out is not None:
        write_rows(out, rows)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print(
            f"{row['what']:<22} {row['images_per_s']:>9,.1f} images/s"
            f"  ({row['low_quartile']:,.1f} to {row['high_quartile']:,.1f})"
            f"  {row['times_jax_step']:.2f} x"
        )


@bench.command()
def attention(
    config_file: ConfigFile = CIFAR,
    profile: ProfileName = PAPER_PROFILE,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Cost of one attention layer, of each of the ten kinds.

    Example: mpcvit bench attention --measure --out results/secure/attention.csv
    """
    from mpcvit.bench.secure import bench_attention
    from mpcvit.experiments.published import published
    from mpcvit.report.costs import draw_seconds
    from mpcvit.report.live import counting

    config, settings = load_config(config_file), load_profile(profile)
    with counting() as progress:
        rows = bench_attention(config.model, settings, measure=measure, progress=progress)
    rows = _beside_paper(rows, "attention", config.name, "attention-variants", published)
    _tell(rows, "attention", out, as_json, lambda path: draw_seconds(path, rows, "attention"))


@bench.command()
def network(
    config_file: ConfigFile = CIFAR,
    profile: ProfileName = PAPER_PROFILE,
    only: Annotated[
        str | None, typer.Option("--networks", help="Only these, between commas.")
    ] = None,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Cost of whole networks as they are written: every one that the paper times.

    Weights are random, as the cost does not depend on them.

    Example: mpcvit bench network --networks softmax,scaling --out results/secure/network.csv
    """
    from mpcvit.bench.secure import bench_network
    from mpcvit.experiments.published import published
    from mpcvit.report.costs import draw_seconds
    from mpcvit.report.live import counting

    config, settings = load_config(config_file), load_profile(profile)
    names = [] if only is None else _known_networks(only, config.model)
    with counting() as progress:
        rows = bench_network(config.model, settings, only=names, measure=measure, progress=progress)
    rows = _beside_paper(rows, "network", config.name, "trade-off", published)
    _tell(rows, "network", out, as_json, lambda path: draw_seconds(path, rows, "network"))


@bench.command()
def lowering(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    profiles: Annotated[
        str, typer.Option("--profiles", help="Profiles, between commas.")
    ] = PAPER_PROFILE,
    only: Annotated[
        str, typer.Option("--networks", help="Networks of the paper, between commas.")
    ] = "relu_softmax,mpcvit-0.7,mpcvit-0.1,scaling",
    batch_sizes: Annotated[str, typer.Option(help="Images at a time, between commas.")] = "1",
    like: Annotated[
        list[Path],
        typer.Option(
            help="Lowered programs, or their program.json, of trained networks whose stand-ins "
            "serve; the first with a network's kinds does. Repeat for more."
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

    Seconds are per image, and from the second batch on. Weights are random; the
    stand-ins and their intervals are those of a trained network.

    Example: mpcvit bench lowering --measure --out results/secure/lowering.csv
    """
    from mpcvit.bench.lowered import bench_lowering, read_example
    from mpcvit.experiments.published import published
    from mpcvit.report.costs import draw_lowering
    from mpcvit.report.live import counting

    config = load_config(config_file, list(overrides or []))
    settings = {name.strip(): load_profile(name.strip()) for name in profiles.split(",")}
    names = _known_networks(only, config.model)
    with counting() as progress:
        rows = bench_lowering(
            config.model,
            settings,
            [read_example(path) for path in like],
            networks=names,
            batch_sizes=parse_whole_numbers(batch_sizes, "--batch-sizes"),
            stage=stage,
            measure=measure,
            progress=progress,
        )
    rows = _beside_paper(rows, "network", config.name, "trade-off", published)
    _tell(rows, "network", out, as_json, lambda path: draw_lowering(path, rows))


@bench.command()
def layers(
    config_file: ConfigFile = TINY_IMAGENET,
    profile: ProfileName = PAPER_PROFILE,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Seconds and bytes of every layer: softmax, ReLU softmax, and half of the heads mixed.

    Example: mpcvit bench layers --out results/secure/layers.csv
    """
    from mpcvit.bench.secure import bench_layers
    from mpcvit.report.costs import draw_layers
    from mpcvit.report.live import counting

    config = load_config(config_file)
    with counting() as progress:
        rows = bench_layers(config.model, load_profile(profile), progress=progress)
    _tell(rows, "network", out, as_json, lambda path: draw_layers(path, rows))


@bench.command()
def breakdown(
    config_file: ConfigFile = CIFAR,
    profiles: Annotated[
        str, typer.Option("--profiles", help="Profiles to compare, between commas.")
    ] = "semi2k-wan,cheetah-wan",
    most_tokens: Annotated[
        int, typer.Option(help="Leave out blocks of more tokens, which take Cheetah long.")
    ] = 257,
    measure: Measure = False,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Where the seconds go: a block by heads and tokens, a network, softmax by its parts.

    Cheetah's exchanges are no rounds, so its seconds are measured or absent.

    Example: mpcvit bench breakdown --profiles semi2k-wan --out results/secure/breakdown.csv
    """
    from mpcvit.bench.secure import bench_breakdown
    from mpcvit.report.costs import draw_breakdown
    from mpcvit.report.live import counting

    config = load_config(config_file)
    settings = {name.strip(): load_profile(name.strip()) for name in profiles.split(",")}
    with counting() as progress:
        rows = bench_breakdown(
            config.model,
            settings,
            most_tokens=most_tokens,
            measure=measure,
            progress=progress,
        )
    _tell(rows, "part", out, as_json, lambda path: draw_breakdown(path, rows))


@bench.command()
def precision(
    profile: ProfileName = PAPER_PROFILE,
    out: TableOut = None,
    as_json: AsJson = False,
) -> None:
    """Relative error of softmax and of ReLU softmax against their input's variance.

    Example: mpcvit bench precision --out results/secure/precision.csv
    """
    from mpcvit.bench.secure import bench_precision
    from mpcvit.records import write_rows
    from mpcvit.report.costs import draw_precision
    from mpcvit.report.live import counting

    with counting() as progress:
        rows = bench_precision(load_profile(profile), progress=progress)
    if out is not None:
        write_rows(out, rows)
        draw_precision(out.with_suffix(".png"), rows)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print(
            f"{row['attention']:<14} variance {row['variance']:>8g}  "
            f"relative error {row['relative_error']:.2e}  largest {row['largest_error']:.2e}"
        )


@bench.command()
def agreement(
    model_file: AnyModelFile,
    data: DataFolder = None,
    profile: ProfileName = PAPER_PROFILE,
    images: Annotated[int, typer.Option(min=1, help="Test images to classify.")] = 64,
    batch_size: Annotated[int, typer.Option(min=1, help="Images at a time.")] = 16,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Threads of one process, without a network.")
    ] = False,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """How often private and plaintext predictions agree on real test images.

    Of a lowered program, plaintext is its emulation.

    Example: mpcvit bench agreement runs/digits/model.safetensors --profile semi2k --simulate
    """
    from mpcvit.bench.secure import bench_agreement
    from mpcvit.lowering.program import load_model
    from mpcvit.records import write_rows
    from mpcvit.report.live import counting

    model, settings = load_model(model_file), load_profile(profile)
    with counting() as progress:
        row = bench_agreement(
            model,
            load_test_images(model, data, progress),
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
    print(f"agree        {row['agree']} of {row['images']} images")
    print(f"right        {row['plain_right']} in plaintext, {row['private_right']} privately")
    print(f"logits       off by at most {row['largest_logit_error']}, of {row['logit_range']}")
    print(f"cost         {row['exchanges']:,} exchanges, {row['sent_mb']:,.1f} MB sent")
    if row["warning"]:
        print(row["warning"])


@bench.command()
def dealer(
    config_file: ConfigFile = CIFAR,
    network: Annotated[str, typer.Option(help="Network of the paper.")] = "relu_softmax",
    like: Annotated[
        Path,
        typer.Option(
            help="Lowered program, or its program.json, of a trained network whose stand-ins serve."
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
    """What a dealer adds to an inference, online and offline, and how many it can serve.

    The network runs as it is written, and lowered. Runs with the dealer and with
    the first party in its place take turns, so that both see the same machine;
    rows of the latter carry a warning. Then dealers of one and more processes
    are asked for its material alone.

    Example: mpcvit bench dealer --rounds 3 --out results/secure/dealer.csv
    """
    settings, config = load_profile(profile), load_config(config_file).model
    counts = parse_whole_numbers(workers, "--workers")

    from mpcvit.bench.dealer import bench_dealer
    from mpcvit.bench.lowered import lower_like, read_example
    from mpcvit.bench.networks import paper_networks, random_checkpoint
    from mpcvit.lowering.engine import choose_engine
    from mpcvit.records import write_rows
    from mpcvit.report.live import counting

    (name,) = _known_networks(network, config)
    architecture = paper_networks(config)[name]
    models = (
        random_checkpoint(config, architecture),
        lower_like(read_example(like).plan, config, architecture, choose_engine(settings)),
    )
    with counting() as progress:
        rows = bench_dealer(
            models, settings, rounds=rounds, jobs=jobs, workers=counts, progress=progress
        )
    if out is not None:
        write_rows(out, rows)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        shown = (f"{name} {value}" for name, value in row.items() if value != "")
        print("  ".join(list(shown)[:14]))
        if row["warning"]:
            print(f"  {row['warning']}")


def _known_networks(names: str, model: "ModelConfig") -> list[str]:
    from mpcvit.bench.networks import paper_networks

    known, wanted = list(paper_networks(model)), [name.strip() for name in names.split(",")]
    for name in wanted:
        if name not in known:
            raise UserError(f"there is no network {name!r}; {nearest(name, known)}")
    return wanted


def _beside_paper(
    rows: Sequence[Mapping[str, Any]],
    label: str,
    config: str,
    experiment: str,
    published: Callable[[str, str, str], Any],
) -> list[dict[str, Any]]:
    """Put the paper's seconds after ours."""
    beside = []
    for row in rows:
        seconds = published(config, experiment, row[label]).latency_s
        place = list(row).index("measured_s") + 1
        items = list(row.items())
        beside.append(
            dict([*items[:place], ("paper_s", "" if seconds is None else seconds), *items[place:]])
        )
    return beside


def _tell(
    rows: Sequence[Mapping[str, Any]],
    label: str,
    out: Path | None,
    as_json: bool,
    draw: Callable[[Path], None],
) -> None:
    from mpcvit.records import write_rows

    if out is not None:
        write_rows(out, rows)
        draw(out.with_suffix(".png"))
    if as_json:
        print_json(list(rows))
        return
    for row in rows:
        place = " ".join(str(row[name]) for name in _PLACES if name in row)
        line = (
            f"{row[label]:<18} {place:<18}{row['exchanges']:>8,} exchanges "
            f"{row['sent_mb']:>10.2f} MB"
        )
        if row["modelled_s"] != "":
            line += f" {row['modelled_s']:>9.2f} s modelled"
        if row.get("measured_s"):
            line += f" {row['measured_s']:>8.2f} s measured"
        if row.get("paper_s"):
            line += f" {row['paper_s']:>8.2f} s in the paper"
        print(line)
    if rows[0]["warning"]:
        print(rows[0]["warning"])

"""`mpcvit bench` of what a run depends on: forecast, cache, threads, links, dealer and engine."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import ModelConfig, load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import complete
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    CIFAR,
    DEALER_PROFILE,
    PAPER_PROFILE,
    Out,
    deliver,
    known_names,
    shipped_references,
)
from mpcvit.cli.options import AsJson, ConfigFile, Overrides, parse_whole_numbers
from mpcvit.cli.run import BatchSize, ProfileName
from mpcvit.cli.running import require_training_packages
from mpcvit.cores import split_cpu

Configs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="CONFIG...", help="Shapes: names or TOML files. [default: cifar10]"),
]
Networks = Annotated[
    str,
    typer.Option(
        "--networks",
        help="Networks of the paper, between commas.",
        autocompletion=complete.networks,
    ),
]
Network = Annotated[
    str, typer.Option(help="Name of a network of the paper.", autocompletion=complete.network)
]
Forms = Annotated[
    str, typer.Option(help="Forms of the networks: lowered, plain, or both between commas.")
]
Rounds = Annotated[int, typer.Option(min=1, help="Number of runs of each kind, in turns.")]
_SECONDS_AN_IMAGE = {
    "s an image": "{median_s:.3f}",
    "fastest": "{fastest_s:.3f}",
    "slowest": "{slowest_s:.3f}",
}


@bench.command()
def forecast(
    configs: Configs = None,
    overrides: Overrides = None,
    only: Networks = "softmax",
    forms: Forms = "lowered,plain",
    batch_size: BatchSize = 1,
    profile: ProfileName = DEALER_PROFILE,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare what `mpcvit estimate` forecasts with runs: exchanges, bytes, seconds and memory.

    Weights are random. Memory is that of the party that took the most.

    Example: mpcvit bench forecast deit-tiny --set model.depth=2 --out forecast.csv
    """
    from mpcvit.bench.sessions import FORMS, bench_forecast

    models = _models(configs, overrides)
    make = partial(
        bench_forecast,
        models,
        load_profile(profile),
        shipped_references(),
        networks=_known_networks(only, next(iter(models.values()))),
        forms=known_names(forms, FORMS, "form"),
        batch_size=batch_size,
    )
    columns = {"shape": "{config}", "network": "{network}", "form": "{form}"}
    for title, measured, expected, form in (
        ("exchanges", "exchanges", "forecast_exchanges", ",.0f"),
        ("MB", "sent_mb", "forecast_mb", ",.0f"),
        ("s", "measured_s", "forecast_s", ".1f"),
    ):
        columns |= {title: f"{{{measured}:{form}}}", f"{title}, forecast": f"{{{expected}:{form}}}"}
    columns |= {"memory, forecast / found": "{memory_ratio:.2f}"}
    deliver(make, columns, out, as_json)


@bench.command("set-up")
def set_up(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    only: Networks = "softmax",
    forms: Forms = "lowered",
    profile: ProfileName = DEALER_PROFILE,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a session takes before its first image, with an empty and a full cache.

    Seconds of `compile` include the rehearsal. CPU seconds are of all processes.

    Example: mpcvit bench set-up --networks softmax,scaling --out results/secure/set-up.csv
    """
    from mpcvit.bench.sessions import FORMS, bench_set_up

    model = load_config(config_file, overrides or ()).model
    make = partial(
        bench_set_up,
        model,
        load_profile(profile),
        shipped_references(),
        networks=_known_networks(only, model),
        forms=known_names(forms, FORMS, "form"),
    )
    columns = {
        **{"network": "{network}", "form": "{form}", "cache": "{cache}"},
        **{"set-up s": "{set_up_s:.1f}", "compile s": "{compile_s:.1f}"},
        **{"image s": "{image_s:.1f}", "CPU s": "{cpu_s:.1f}"},
        **{"exchanges": "{exchanges:,}", "MB": "{sent_mb:,.0f}", "peak MB": "{peak_mb:,}"},
    }
    deliver(make, columns, out, as_json)


@bench.command()
def threads(
    config_file: ConfigFile = CIFAR,
    overrides: Overrides = None,
    only: Networks = "relu_softmax,scaling",
    profile: ProfileName = DEALER_PROFILE,
    rounds: Rounds = 3,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare SPU's four threads per product with as many as the parties have cores for.

    The networks are lowered. Seconds are those of the last image of a session.

    Example: mpcvit bench threads --out results/secure/threads.csv
    """
    from mpcvit.bench.sessions import bench_threads

    model = load_config(config_file, overrides or ()).model
    make = partial(
        bench_threads,
        model,
        load_profile(profile),
        shipped_references(),
        networks=_known_networks(only, model),
        rounds=rounds,
    )
    columns = {"network": "{network}", "threads": "{threads:d}", **_SECONDS_AN_IMAGE}
    deliver(make, {**columns, "of SPU's 4": "{of_spu:.3f}"}, out, as_json)


@bench.command()
def dealer(
    config_file: ConfigFile = CIFAR,
    network: Network = "relu_softmax",
    profile: ProfileName = DEALER_PROFILE,
    rounds: Rounds = 3,
    workers: Annotated[
        str, typer.Option(help="Processes of the dealer alone, between commas.")
    ] = "1,2",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure what a dealer adds to an inference, and how many inferences it can serve.

    The network runs as it is written, and lowered. The dealer and the first party
    in its place take turns, so that both see the same machine. Rows of the first
    party carry a warning. At the end, dealers of one and more processes are asked
    for material alone.

    Example: mpcvit bench dealer --rounds 3 --out results/secure/dealer.csv
    """
    settings, model = load_profile(profile), load_config(config_file).model
    counts = parse_whole_numbers(workers, "--workers")

    from mpcvit.bench.dealer import bench_dealer
    from mpcvit.bench.lowered import lower_like
    from mpcvit.bench.networks import paper_networks, random_checkpoint

    (name,) = _known_networks(network, model)
    architecture = paper_networks(model)[name]
    models = (
        random_checkpoint(model, architecture),
        lower_like(shipped_references(), model, architecture, settings),
    )
    make = partial(bench_dealer, models, settings, rounds=rounds, workers=counts)
    columns = {
        **{"form": "{form}", "what": "{what}", "dealer": "{dealer}", "workers": "{workers:d}"},
        **{"s": "{online_s:.2f}", "of first party": "{of_first_party:.3f}"},
        **{
            "exchanges": "{exchanges:,}",
            "MB sent": "{sent_mb:.1f}",
            "MB dealt": "{offline_mb:.1f}",
        },
        **{"jobs a minute": "{jobs_per_minute:.1f}", "CPU s a job": "{dealer_cpu_s_per_job:.2f}"},
    }
    deliver(make, columns, out, as_json)


@bench.command()
def peers(
    configs: Configs = None,
    overrides: Overrides = None,
    only: Annotated[
        str, typer.Option("--networks", help="softmax, relu_softmax or scaling, between commas.")
    ] = "scaling",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Run the same network on mpcvit, on plain SPU and on CrypTen, through the same emulated WAN.

    Prints seconds, bytes and exchanges of one image, their ratios to SPU's, and
    whom one must trust. CrypTen's rows need PyTorch and CrypTen, which no
    extra installs. Weights are random. CrypTen's logits are compared with plaintext.

    Example: mpcvit bench peers cifar10 deit-tiny --networks softmax --out peers.csv
    """
    from mpcvit.bench.peers import INSTALL_CRYPTEN, NETWORKS, bench_peers, is_crypten_there

    networks, models = known_names(only, NETWORKS), _models(configs, overrides)
    if not is_crypten_there():
        typer.echo(INSTALL_CRYPTEN, err=True)
    make = partial(
        bench_peers,
        models,
        load_profile(DEALER_PROFILE),
        load_profile(PAPER_PROFILE),
        shipped_references(),
        networks=networks,
    )
    columns = {
        **{"shape": "{config}", "network": "{network}", "engine": "{engine}"},
        **{"s": "{measured_s:.1f}", "of SPU's": "{s_of_spu:.2f}"},
        **{"MB sent": "{sent_mb:.1f}", "of SPU's MB": "{mb_of_spu:.2f}"},
        **{"exchanges": "{exchanges:,}", "of SPU's exchanges": "{rounds_of_spu:.2f}"},
    }
    rows = deliver(make, columns, out, as_json)
    if not as_json:
        for engine, trusted in {row["engine"]: row["trusted"] for row in rows}.items():
            print(f"{engine}: trusted is {trusted}")


@bench.command()
def training(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG...", help="Shapes: names or TOML files.")
    ],
    overrides: Overrides = None,
    stages: Annotated[
        str, typer.Option(help="What to train: train, search and retrain, between commas.")
    ] = "train,search,retrain",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Measure the peak memory and the seconds of training steps on this machine.

    Weights and images are random. Each row is a process of its own, whose first
    step compiles. Less memory: train.piece_size=4, or train.remat=true.

    Example: mpcvit bench training deit-tiny --set train.batch_size=32
    """
    require_training_packages()
    shapes = {path.stem: load_config(path, overrides or ()) for path in configs}
    split_cpu(next(iter(shapes.values())).train.batch_size)

    from mpcvit.bench.training import STAGES, bench_training

    wanted = tuple(known_names(stages, STAGES, "stage"))
    make = partial(bench_training, shapes, stages=wanted)
    columns = {
        **{"model": "{model}", "stage": "{stage}", "batch": "{batch_size}"},
        **{"at once": "{piece_size}", "remat": "{remat}", "peak GB": "{peak_gb:.2f}"},
        **{"s a step": "{step_s:.1f}", "images/s": "{images_per_s:.1f}"},
    }
    deliver(make, columns, out, as_json)


def _models(configs: list[Path] | None, overrides: list[str] | None) -> dict[str, ModelConfig]:
    return {path.stem: load_config(path, overrides or ()).model for path in configs or [CIFAR]}


def _known_networks(names: str, model: ModelConfig) -> list[str]:
    from mpcvit.bench.networks import paper_networks

    return known_names(names, paper_networks(model))

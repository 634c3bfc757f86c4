"""`mpcvit experiment`: the paper's tables and figures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import app, complete
from mpcvit.cli.options import (
    AsJson,
    DataFolder,
    Overrides,
    parse_seconds,
    parse_whole_numbers,
    settings_of,
)
from mpcvit.cli.run import ProfileName
from mpcvit.cli.running import load_data, require_training_packages
from mpcvit.cli.show import print_json, print_pairs, print_table
from mpcvit.cores import split_cpu
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.experiments.catalogue import Experiment
    from mpcvit.experiments.store import Price, RunStore
    from mpcvit.train.loop import Observer


_COLUMNS = {
    "network": "{network}",
    "top-1 %": "{top1_mean:}",
    "95 % interval": "{top1_low:}{to}{top1_high:}",
    "seeds": "{seeds:d}",
    "modelled s": "{modelled_s:.2f}",
    "paper %": "{paper_top1:.2f}",
    "paper s": "{paper_s:.2f}",
}


@app.command()
def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Name of an experiment; see --list.",
            autocompletion=complete.experiment,
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="Configuration with the scale of its networks.",
            autocompletion=complete.config,
        ),
    ] = None,
    data: DataFolder = None,
    overrides: Overrides = None,
    seeds: Annotated[str, typer.Option(help="Seeds of the trainings, between commas.")] = "0",
    rows: Annotated[
        str | None, typer.Option(help="Rows of the experiment, between commas; all unless given.")
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            help="Seconds of the networks that `found` derives, between commas, such as 2.5s,3.5s."
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the results; results/NAME-OF-CONFIG unless given. With --list, the "
            "folder above those."
        ),
    ] = None,
    profile: ProfileName = "semi2k-wan",
    latency: Annotated[
        Path | None,
        typer.Option("--latency", help="Latency file to use instead of measured prices."),
    ] = None,
    only_finished: Annotated[
        bool,
        typer.Option("--finished", help="Write the rows of finished runs; train nothing."),
    ] = False,
    judge_by_test: Annotated[
        bool,
        typer.Option(
            "--test",
            help="Evaluate finished runs on the test images; train nothing. Needs a validation "
            "split (data.validation_images), by which all choices were made.",
        ),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List all experiments, and the rows that there are.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run one of the paper's tables or figures end to end.

    Trains and searches all that it needs, one network after another, all for
    the same number of epochs. The cost of each choice is measured first, under
    the profile, and kept with the runs. You may stop it at any time: the same command
    continues where it stopped. Experiments share runs. Results are written after each.

    Example: mpcvit experiment trade-off digits --seeds 0,1
    """
    from mpcvit.experiments.catalogue import find_experiment

    if list_all:
        _list(out or Path("results"), as_json)
        return
    if name is None or config_file is None:
        raise UserError("give an experiment and a configuration, or --list")
    require_training_packages()
    wanted = find_experiment(name)
    if budgets is not None:
        seconds = (parse_seconds(own, "--budgets") for own in budgets.split(","))
        wanted = wanted.within(tuple(seconds))
    if rows is not None:
        wanted = wanted.only([row.strip() for row in rows.split(",")])
    config = load_config(config_file, settings_of(data, overrides))
    split_cpu(config.train.batch_size)

    from mpcvit.experiments.run import run_experiment
    from mpcvit.experiments.store import RunStore
    from mpcvit.report.live import tell
    from mpcvit.train.loop import StoppedError

    store = RunStore(
        config_file=config_file,
        overrides=tuple(settings_of(data, overrides)),
        dataset=load_data(config),
        runs=runs,
        price=_prices(latency, profile, runs / config.name / "prices"),
        watch=_watch,
    )
    folder, numbers = out or Path("results") / config.name, parse_whole_numbers(seeds, "--seeds")
    if judge_by_test:
        _judge_by_test(wanted, store, numbers, folder, as_json)
        return
    try:
        summaries, means = run_experiment(
            wanted, store, numbers, folder, only_finished=only_finished
        )
    except StoppedError as stopped:
        tell(f"{stopped}; the same command goes on")
        raise typer.Exit(130) from None
    if not summaries and not means:
        raise UserError(
            f"{runs / config.name} holds no finished run of {wanted.name}; leave out --finished"
        )
    if as_json:
        print_json({"networks": [asdict(one) for one in summaries], "mean_alpha": dict(means)})
        return
    if summaries:
        print_table(
            [asdict(one) | {"to": " to " * bool(one.interval)} for one in summaries], _COLUMNS
        )
    if means:
        alphas = {
            name: "  ".join(f"{mean:.3f}" for mean in layers) for name, layers in means.items()
        }
        print_pairs({"mean alpha by layer": "", **alphas})
    print(f"written to {folder / wanted.name}.csv and .png")


def _judge_by_test(
    wanted: "Experiment", store: "RunStore", seeds: Sequence[int], folder: Path, as_json: bool
) -> None:
    from mpcvit.experiments.run import judge_by_test_images

    if store.dataset.validation is None:
        raise UserError(
            "--test needs runs that were judged by other images; set data.validation_images"
        )
    rows = judge_by_test_images(wanted, store, seeds, folder)
    if not rows:
        raise UserError(f"{store.runs} holds no finished run of {wanted.name}")
    if as_json:
        print_json({"networks": rows})
        return
    print_table(
        rows,
        {
            "network": "{network}",
            "seed": "{seed:d}",
            "validation %": "{validation_top1:.2f}",
            "test %": "{test_top1:.2f}",
        },
    )
    print(f"written to {folder / wanted.name}-test.csv")


def _list(results: Path, as_json: bool) -> None:
    from mpcvit.experiments.catalogue import EXPERIMENTS
    from mpcvit.experiments.held import held_rows

    if as_json:
        print_json(
            [
                {
                    "name": one.name,
                    "mirrors": one.mirrors,
                    "about": one.about,
                    "rows": one.row_names,
                    "held": [asdict(held) for held in held_rows(one, results)],
                }
                for one in EXPERIMENTS
            ]
        )
        return
    for one in EXPERIMENTS:
        print(f"{one.name}\n  {one.mirrors}\n  {one.about}\n  rows: {', '.join(one.row_names)}")
        for held in held_rows(one, results):
            few, many = held.fewest_seeds, held.most_seeds
            seeds = f"{few} to {many} seeds" if few < many else f"{few} seed{'s' * (few > 1)}"
            print(
                f"  there: {len(held.seeds)} of {len(one.row_names)} rows, {seeds}, "
                f"{' or '.join(map(str, held.epochs))} epochs ({held.folder})"
            )
        if not held_rows(one, results):
            print("  there: no rows; not run")


def _prices(latency: Path | None, profile: str, folder: Path) -> "Price":
    """Return the prices of a file, for every model of its shape, or measured ones."""
    from mpcvit.artifacts.latency import LatencyTable
    from mpcvit.pipeline.prices import measured_prices
    from mpcvit.report.live import tell

    if latency is not None:
        table = LatencyTable.load(latency)
        return lambda model: table
    settings = load_profile(profile)
    settings.require_network()
    return measured_prices(
        folder, settings, lambda what, done, total: tell(f"{what} {done} of {total}")
    )


@contextmanager
def _watch(name: str) -> "Iterator[Sequence[Observer]]":
    from mpcvit.report.live import LiveProgress, tell
    from mpcvit.report.runs import FigureWriter

    tell(name)
    with LiveProgress() as live:
        yield (live, FigureWriter())

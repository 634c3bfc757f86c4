"""`mpcvit pipeline`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import app, complete
from mpcvit.cli.making.start import From, load_start, settings_from
from mpcvit.cli.options import AsJson, DataFolder, Overrides, parse_numbers, parse_seconds
from mpcvit.cli.research.report import write_report
from mpcvit.cli.running import load_data, require_training_packages, tell_start
from mpcvit.cli.show import print_json, print_pairs, print_table
from mpcvit.cores import split_cpu
from mpcvit.errors import UserError
from mpcvit.storage import holding, require_writable

if TYPE_CHECKING:
    from mpcvit.pipeline.run import Step
    from mpcvit.report.live import WholeProgress
    from mpcvit.train.loop import Observer

_FINE_TUNING = "finetune"  # the configuration for a model of one's own
_MEASURING, _SERVING = "semi2k-wan", "semi2k-dealer-wan"
_SESSION = 3  # images from which on masks of weights are reused


@app.command()
def pipeline(
    config_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="TOML file, or a name that `mpcvit configs` lists. With --from, the default is "
            "finetune.",
            autocompletion=complete.config,
        ),
    ] = None,
    start: From = None,
    data: DataFolder = None,
    overrides: Overrides = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            help="Fractions of heads that keep the expensive attention, between commas; "
            "the default is 0.1,0.3,0.5,0.7, or none with --budgets."
        ),
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(
            "--budgets",
            "--budget",
            help="Seconds that a private image may take, such as 15s or 12s,20s.",
        ),
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(help="Baselines of the paper to train too, such as relu_softmax,scaling."),
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            help=f"Profile to measure with. The default is {_MEASURING}, or {_SERVING} with "
            "--from.",
            autocompletion=complete.profile,
        ),
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(
            min=1, help="Test images to classify privately. The default is 1, or 3 with --from."
        ),
    ] = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Measure in threads: same counts, no seconds."),
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Report to write (HTML); runs/NAME/report.html unless given."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Go the whole way: teacher, profile, search, derive, retrain, lower, measure, report.

    With --from the teacher is your own network, fine-tuned, and the others start
    from it. Seconds are then those of lowered networks. You may stop it at any time: the
    same command continues where it stopped, and reuses every step whose result is there.
    `mpcvit experiment` shares its runs.

    Example: mpcvit pipeline --from vit-folder --data photos --budget 15s
    """
    if config_file is None:
        if start is None:
            raise UserError(
                "name a configuration, as mpcvit configs lists them, or your model with --from"
            )
        config_file = Path(_FINE_TUNING)
    if out is not None:
        require_writable(out)
    shares = parse_numbers(ratios, "--ratios")
    seconds = tuple(parse_seconds(own, "--budget") for own in (budgets or "").split(",") if own)
    chosen = {} if shares is None and not seconds else {"ratios": shares or ()}
    settings_of_run = load_profile(profile or (_MEASURING if start is None else _SERVING))
    begun = load_start(start)
    settings = settings_from(begun, config_file, data, overrides)
    config = load_config(config_file, settings)

    from mpcvit.pipeline.plan import Plan

    require_training_packages()
    plan = Plan(
        config=config,
        profile=settings_of_run,
        budgets_s=seconds,
        baselines=tuple(name.strip() for name in baselines.split(",")) if baselines else (),
        images=images or (1 if begun is None else _SESSION),
        simulate=simulate,
        start=begun,
        **chosen,
    )
    split_cpu(config.train.batch_size)

    from mpcvit.cost.estimate import estimate
    from mpcvit.experiments.store import RunStore
    from mpcvit.pipeline.run import Pipeline
    from mpcvit.report.live import WholeProgress, tell
    from mpcvit.train.loop import StoppedError

    dataset = load_data(config)
    store = RunStore(
        config_file=config_file,
        overrides=tuple(settings),
        dataset=dataset,
        runs=runs,
        price=estimate,
        watch=lambda name: _watch(display),
        start=begun,
    )
    if begun is not None:
        own = store.network_config(plan.teacher, config.seed)
        tell_start(own, dataset, begun, begun.architecture)
    with holding(runs / config.name), WholeProgress(Pipeline.count_steps(plan)) as display:
        course = Pipeline(plan=plan, store=store, display=display)
        try:
            course.run()
        except (StoppedError, KeyboardInterrupt):
            tell("stopped; the same command goes on")
            raise typer.Exit(130) from None
    page = out or course.folder / "report.html"
    charts, _ = write_report([course.folder], page, title=f"mpcvit pipeline: {config.name}")
    if as_json:
        print_json(
            {
                "steps": [step.to_dict() for step in course.done],
                "charts": [chart.id for chart in charts],
                "report": str(page),
            }
        )
        return
    _tell(course.done)
    print_pairs({"results": course.folder / "pipeline.csv", "report": page})


@contextmanager
def _watch(display: "WholeProgress") -> "Iterator[Sequence[Observer]]":
    from mpcvit.report.runs import FigureWriter

    with display.training() as live:
        yield (live, FigureWriter())


def _tell(done: "Sequence[Step]") -> None:
    rows = [{**step.to_dict(), "status": step.outcome.status.value} for step in done]
    columns = {"step": "{step}", "of": "{subject}", "": "{status}", "seconds": "{seconds:.1f}"}
    print_table(rows, {**columns, "result": "{outcome}"})
    reused = [step for step in done if step.outcome.status.value == "reused"]
    count = len(done) - len(reused)
    steps = "1 step" if count == 1 else f"{count} steps"
    seconds = sum(step.outcome.seconds for step in done if step not in reused)
    print(f"{steps} ran in {seconds:,.0f} s, {len(reused)} were reused")

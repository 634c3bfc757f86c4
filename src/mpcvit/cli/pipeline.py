"""`mpcvit pipeline`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import app
from mpcvit.cli.options import AsJson, ConfigFile, DataFolder, Overrides, parse_numbers, settings_of
from mpcvit.cli.report import write_report
from mpcvit.cli.run import ProfileName
from mpcvit.cli.running import load_data
from mpcvit.cli.search import parse_seconds
from mpcvit.cli.show import print_json, print_pairs, print_table
from mpcvit.cores import split_cpu

if TYPE_CHECKING:
    from mpcvit.pipeline.run import Step
    from mpcvit.report.live import WholeProgress
    from mpcvit.train.loop import Observer


@app.command()
def pipeline(
    config_file: ConfigFile,
    data: DataFolder = None,
    overrides: Overrides = None,
    ratios: Annotated[
        str | None,
        typer.Option(
            help="Fractions of heads that keep the expensive attention, between commas; "
            "0.1,0.3,0.5,0.7 unless budgets are given."
        ),
    ] = None,
    budgets: Annotated[
        str | None, typer.Option(help="Seconds for whole networks, such as 12s,20s.")
    ] = None,
    baselines: Annotated[
        str | None,
        typer.Option(help="Also train these of the paper's baselines, as relu_softmax,scaling."),
    ] = None,
    profile: ProfileName = "semi2k-wan",
    images: Annotated[int, typer.Option(min=1, help="Test images to classify privately.")] = 1,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Measure in threads: same counts, no measured seconds."),
    ] = False,
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs"),
    out: Annotated[
        Path | None, typer.Option("--out", help="Report; runs/NAME/report.html unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Go the whole way: teacher, profile, search, derive, retrain, lower, measure, report.

    Stop it at any time: the same command goes on where it was, and reuses every
    step whose result is there. `mpcvit experiment` shares its runs.

    Example: mpcvit pipeline configs/digits-quick.toml --ratios 0.3,0.7
    """
    from mpcvit.pipeline.plan import Plan

    settings = settings_of(data, overrides)
    config = load_config(config_file, settings)
    shares = parse_numbers(ratios, "--ratios")
    seconds = tuple(parse_seconds(part) for part in budgets.split(",")) if budgets else ()
    chosen = {} if shares is None and not seconds else {"ratios": shares or ()}
    plan = Plan(
        config=config,
        profile=load_profile(profile),
        budgets_s=seconds,
        baselines=tuple(name.strip() for name in baselines.split(",")) if baselines else (),
        images=images,
        simulate=simulate,
        **chosen,
    )
    split_cpu(config.train.batch_size)

    from mpcvit.cost.estimate import estimate
    from mpcvit.experiments.store import RunStore
    from mpcvit.pipeline.run import Pipeline
    from mpcvit.report.live import WholeProgress, console
    from mpcvit.train.loop import StoppedError

    dataset = load_data(config)
    with WholeProgress(Pipeline.count_steps(plan)) as display:
        store = RunStore(
            config_file=config_file,
            overrides=tuple(settings),
            dataset=dataset,
            runs=runs,
            price=estimate,
            watch=lambda name: _watch(display),
        )
        course = Pipeline(plan=plan, store=store, display=display)
        try:
            course.run()
        except (StoppedError, KeyboardInterrupt):
            console.print("stopped; the same command goes on", highlight=False)
            raise typer.Exit(130) from None
    page = out or course.folder / "report.html"
    charts = write_report([course.folder], page, title=f"mpcvit pipeline: {config.name}")
    if as_json:
        print_json(
            {
                "steps": [step.to_dict() for step in course.done],
                "charts": charts,
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

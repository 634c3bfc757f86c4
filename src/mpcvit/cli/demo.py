"""`mpcvit demo`."""

import time
import webbrowser
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.research.report import write_report
from mpcvit.cli.show import print_json, print_pairs, print_table
from mpcvit.errors import UserError
from mpcvit.storage import holding

if TYPE_CHECKING:
    from mpcvit.demo.show import Shown
    from mpcvit.demo.showcase import Sample, Showcase


@app.command()
def demo(
    images: Annotated[
        int, typer.Option(min=1, help="Number of sample images; they run one by one.")
    ] = 4,
    models: Annotated[
        Path | None,
        typer.Option(help="Folder of a showcase of your own, with a showcase.json."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for networks, records and report.")] = (
        Path("runs/demo")
    ),
    show_page: Annotated[
        bool, typer.Option("--open", help="Open the report in the browser at the end.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Watch shipped networks classify images privately, and get a report of it.

    A plain softmax network classifies one image, so that its seconds are known.
    Networks that were made for private inference classify all of them. Model
    owner and data owner are two processes, joined by an emulated WAN. A third
    process is their dealer. The demo needs no network and no data.

    Example: mpcvit demo --images 2 --open
    """
    from mpcvit.artifacts.profile import load_profile
    from mpcvit.demo.show import show
    from mpcvit.demo.showcase import SHIPPED, Showcase
    from mpcvit.report.live import WholeProgress, tell
    from mpcvit.secure.learnt import who_learns

    began = time.monotonic()
    source = SHIPPED if models is None else models
    showcase = Showcase.load(source)
    if images > len(showcase.samples):
        raise UserError(f"{source} holds {len(showcase.samples)} sample images, not {images}")
    samples, profile = showcase.samples[:images], load_profile(showcase.profile)
    line = profile.network
    tell(
        f"{images} images one by one, {profile.protocol.name} through an emulated line of "
        f"{line.round_trip_ms:g} ms and {line.bandwidth_bytes_per_s / 1e6:g} MB/s"
    )
    with holding(out), WholeProgress(len(showcase.columns)) as display:
        shown = show(showcase, source, out, samples, display)
    if reused := [one.title for one in shown if one.reused]:
        tell(f"{'; '.join(reused)}: measured before; remove {out} to run again")
    page = out / "report.html"
    charts, _ = write_report([out], page, title="mpcvit demo")
    learnt = {one.who: one.words for one in who_learns(profile)} | {"trusted": profile.trust}
    if show_page and not webbrowser.open(page.resolve().as_uri()):
        tell(f"there is no browser here; open {page} in one")
    if as_json:
        drawn = {"charts": [chart.id for chart in charts], "report": str(page)}
        print_json(_document(shown, samples, learnt) | drawn)
        return
    _tell(showcase, shown, samples)
    print("\nWhat each process learnt of the others")
    print_pairs(learnt, indent="  ")
    print(
        "  All ran on this machine, whose administrator sees everything. Between hosts,\n"
        "  use mpcvit dealer, mpcvit serve and mpcvit predict (each with --help).\n"
    )
    print_pairs({"networks": out, "report": page, "took": f"{time.monotonic() - began:.0f} s"})


def _tell(showcase: "Showcase", shown: "Sequence[Shown]", samples: "Sequence[Sample]") -> None:
    """Print a table: a column for each run, a row for each image, and the cost below."""
    lines = [
        *((sample.truth, [_answer(one, i) for one in shown]) for i, sample in enumerate(samples)),
        ("right", [f"{one.row['private_right']} of {one.row['images']}" for one in shown]),
        ("as in plaintext", [f"{one.row['agree']} of {one.row['images']}" for one in shown]),
        (f"top-1 of {showcase.test_images:,}", [f"{one.row['top1']:.2f} %" for one in shown]),
        ("MB sent per image", [f"{one.row['sent_mb']:,.1f}" for one in shown]),
        ("MB dealt before, per image", [_dealt(one) for one in shown]),
        ("exchanges per image", [f"{one.row['exchanges']:,}" for one in shown]),
        ("seconds per image", [f"{one.image_s:.1f}" for one in shown]),
        ("seconds, all images", [f"{one.record.times.images_s:.1f}" for one in shown]),
        ("seconds of set-up", [f"{one.record.times.set_up_s:.1f}" for one in shown]),
        ("seconds in all", [f"{one.record.times.total_s:.1f}" for one in shown]),
        ("speed-up", [f"{shown[0].image_s / one.image_s:.1f}" for one in shown]),
    ]
    titles = [one.title for one in shown]
    rows = [{"truth": name, **dict(zip(titles, cells, strict=True))} for name, cells in lines]
    print_table(rows, {"truth": "{truth}", **{title: f"{{{title}:>}}" for title in titles}})


def _answer(one: "Shown", place: int) -> str:
    answer = one.answer(place)
    return "not run" if answer is None else f"{answer[0]}, {answer[1]:.1f} s"


def _dealt(one: "Shown") -> str:
    offline = one.record.offline
    return "–" if offline is None else f"{offline.received_bytes / one.record.images / 1e6:,.1f}"


def _document(
    shown: "Sequence[Shown]", samples: "Sequence[Sample]", learnt: dict[str, str]
) -> dict[str, Any]:
    return {
        "truths": [sample.truth for sample in samples],
        "networks": [
            {
                **one.row,
                "predictions": list(one.predictions),
                "times": asdict(one.record.times),
                "speed_up": round(shown[0].image_s / one.image_s, 2),
            }
            for one in shown
        ],
        "learnt": learnt,
    }

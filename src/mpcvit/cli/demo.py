"""`mpcvit demo`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.report import write_report
from mpcvit.cli.show import print_json, print_pairs, print_table
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.demo.show import Shown
    from mpcvit.demo.showcase import Sample, Showcase


@app.command()
def demo(
    images: Annotated[
        int, typer.Option(min=1, help="How many of the sample images; they run all at a time.")
    ] = 4,
    models: Annotated[
        Path | None,
        typer.Option(help="A showcase of your own, as tools/make_showcase.py makes it."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for networks, records and report.")] = (
        Path("runs/demo")
    ),
    as_json: AsJson = False,
) -> None:
    """Watch shipped networks classify images privately, and get a report of it.

    A softmax network and the MPCViT that was searched and retrained from it run
    as they were trained and as they were lowered, on sample images that come
    with the package. The owners of model and images are two processes, joined
    by an emulated WAN, and a third deals their randomness. Needs no network
    and no data.

    Example: mpcvit demo --images 2 --out runs/demo
    """
    from mpcvit.artifacts.profile import load_profile
    from mpcvit.demo.show import FORMS, show, who_learnt
    from mpcvit.demo.showcase import SHIPPED, Showcase
    from mpcvit.report.live import WholeProgress, console

    source = SHIPPED if models is None else models
    showcase = Showcase.load(source)
    if images > len(showcase.samples):
        raise UserError(f"{source} holds {len(showcase.samples)} sample images, not {images}")
    samples, profile = showcase.samples[:images], load_profile(showcase.profile)
    line = profile.network
    console.print(
        f"{images} images at a time, {profile.protocol.name} through an emulated line of "
        f"{line.round_trip_ms:g} ms and {line.bandwidth_bytes_per_s / 1e6:g} MB/s",
        highlight=False,
        soft_wrap=True,
    )
    with WholeProgress(len(showcase.networks) * len(FORMS)) as display:
        shown = show(showcase, source, out, samples, display)
    if reused := [one.title for one in shown if one.reused]:
        note = f"{'; '.join(reused)}: measured before; remove {out} to run again"
        console.print(note, highlight=False, soft_wrap=True)
    page = out / "report.html"
    # the paper's points are of far larger networks
    charts = write_report([out], page, title="mpcvit demo", published=False)
    learnt = who_learnt(profile)
    if as_json:
        print_json(_document(shown, samples, learnt) | {"charts": charts, "report": str(page)})
        return
    _tell(showcase, shown, samples)
    print("\nWhat each process learnt of the others")
    print_pairs(learnt, indent="  ")
    print(
        "  All ran on this machine, whose administrator sees everything. Between hosts,\n"
        "  use mpcvit dealer, mpcvit serve and mpcvit predict (docs/two_hosts.md).\n"
    )
    print_pairs({"networks": out, "report": page})


def _tell(showcase: "Showcase", shown: "Sequence[Shown]", samples: "Sequence[Sample]") -> None:
    """One table: a column for each run, a row for each image, and what it cost below."""
    count, first = len(samples), shown[0].record.measured_s
    lines = [
        *(
            (sample.truth, [one.predictions[i] for one in shown])
            for i, sample in enumerate(samples)
        ),
        ("right", [f"{one.row['private_right']} of {count}" for one in shown]),
        ("as in plaintext", [f"{one.row['agree']} of {count}" for one in shown]),
        (f"top-1 of {showcase.test_images:,}", [f"{one.row['top1']:.2f} %" for one in shown]),
        ("MB sent", [f"{one.record.sent_bytes / 1e6:,.1f}" for one in shown]),
        ("MB dealt before", [_dealt(one) for one in shown]),
        ("exchanges", [f"{one.record.exchanges:,}" for one in shown]),
        ("seconds", [f"{one.record.measured_s:.1f}" for one in shown]),
        ("speed-up", [f"{first / one.record.measured_s:.1f}" for one in shown]),
    ]
    titles = [one.title for one in shown]
    rows = [{"truth": name, **dict(zip(titles, cells, strict=True))} for name, cells in lines]
    print_table(rows, {"truth": "{truth}", **{title: f"{{{title}:>}}" for title in titles}})


def _dealt(one: "Shown") -> str:
    offline = one.record.offline
    return "–" if offline is None else f"{offline.received_bytes / 1e6:,.1f}"


def _document(
    shown: "Sequence[Shown]", samples: "Sequence[Sample]", learnt: dict[str, str]
) -> dict[str, Any]:
    first = shown[0].record.measured_s
    return {
        "truths": [sample.truth for sample in samples],
        "networks": [
            {
                **one.row,
                "predictions": list(one.predictions),
                "speed_up": round(first / one.record.measured_s, 2),
            }
            for one in shown
        ],
        "learnt": learnt,
    }

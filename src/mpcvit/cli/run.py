"""`mpcvit run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.artifacts.profile import (
    DEALER_DEFAULT,
    SECURE_DEFAULT,
    Profile,
    load_profile,
    shipped_profiles,
)
from mpcvit.artifacts.record import Reveal
from mpcvit.cli import app
from mpcvit.cli.options import AnyModelFile, AsJson
from mpcvit.cli.show import print_json
from mpcvit.codec import encode, save

if TYPE_CHECKING:
    from mpcvit.secure.run import RunResult

_PROFILES = (
    f"Protocol, ring and network: a TOML file, or one of {', '.join(shipped_profiles())}. Those "
    "with an insecure dealer (semi2k, semi2k-lan, semi2k-wan) are for measuring only."
)
ProfileName = Annotated[str, typer.Option("--profile", metavar="PROFILE", help=_PROFILES)]
MaybeProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help=f"{_PROFILES} Default: {SECURE_DEFAULT}, or {DEALER_DEFAULT} for a program that was "
        "lowered for a profile with a dealer.",
    ),
]
Pictures = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGE...", help="Picture files, or folders of pictures."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images at a time.")]
RecordFile = Annotated[
    Path | None, typer.Option("--out", help="File for the record of the run (JSON).")
]
RevealOption = Annotated[
    Reveal,
    typer.Option(
        "--reveal",
        help="What the owner of the images is given: the likeliest class, the set of the five "
        "likeliest, rounded logits with the class, or logits. All but logits are made of secrets.",
    ),
]
_LIKELIEST = 5


@app.command()
def run(
    model_file: AnyModelFile,
    images: Pictures,
    profile: MaybeProfile = None,
    batch_size: BatchSize = 1,
    reveal: RevealOption = Reveal.CLASS,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Threads of one process in place of processes: quick to start, same counts, "
            "neither private nor with a network.",
        ),
    ] = False,
    check_range: Annotated[
        bool,
        typer.Option(
            "--check-range",
            help="With --simulate: compute in plaintext first, and name the stages whose values "
            "leave the range that the profile can represent.",
        ),
    ] = False,
    out: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Classify images privately, with every party a process on this machine.

    The process that holds the model sees no image, and the one that holds the
    images sees no weight; shapes and architecture are known to both. Only the
    owner of the images learns the result. docs/threat_model.md says who must
    be trusted under which profile.

    Example: mpcvit run runs/digits/model.safetensors photo.png --profile semi2k-wan
    """
    from mpcvit.data import list_pictures
    from mpcvit.report.live import counting
    from mpcvit.secure.run import default_profile_for
    from mpcvit.secure.run import run as stage

    settings = load_profile(profile or default_profile_for(model_file))
    pictures = list_pictures(images)

    with counting() as progress:
        result = stage(
            model_file,
            pictures,
            settings,
            batch_size=batch_size,
            reveal=reveal,
            simulate=simulate,
            check_range=check_range,
            progress=progress,
        )
    print_result(pictures, result, settings, out=out, as_json=as_json)


def print_result(
    pictures: list[Path],
    result: "RunResult",
    profile: Profile,
    *,
    out: Path | None,
    as_json: bool,
) -> None:
    """Print what the data owner learnt and what it cost; then write the record if asked to.

    The answers come first, so that a full disk does not take them away.
    """
    from mpcvit.report.live import console

    if as_json:
        print_json(_document(pictures, result))
    else:
        notes = list(result.record.notes)
        if result.resized:
            notes.append(f"{result.resized} of {len(pictures)} images resized as in evaluation")
        for note in notes:
            console.print(f"note: {note}", highlight=False, soft_wrap=True)
        _print(pictures, result, profile.trust)
    if out is not None:
        save(out, result.record)
    if result.refused:
        from mpcvit.secure.result import RefusedError, refusal

        raise RefusedError(refusal([str(pictures[index]) for index in result.refused]))


def _likeliest(result: "RunResult", index: int) -> list[tuple[str, float]]:
    """Return the likeliest classes of an image, with softmax probabilities of its logits."""
    import numpy as np

    assert result.answers.values is not None
    logits = np.array(result.answers.values[index], np.float64)
    odds = np.exp(logits - logits.max())
    odds /= odds.sum()
    return [(result.classes[place], float(odds[place])) for place in odds.argsort()[::-1]][
        :_LIKELIEST
    ]


def _print(pictures: list[Path], result: "RunResult", trust: str) -> None:
    from mpcvit.secure.result import REVEALED

    record, set_up = result.record, result.record.set_up
    for index, picture in enumerate(pictures):
        print(f"{picture}: {_shown(result, index)}")
    print(f"revealed   {REVEALED[result.reveal]}, to the owner of the images")
    print(f"sent       {record.sent_bytes / 1e6:,.2f} MB")
    print(f"received   {record.received_bytes / 1e6:,.2f} MB")
    print(f"exchanges  {record.exchanges:,}")
    print(f"time       {record.measured_s:.2f} s, with {record.compute_s:.2f} s of computing")
    print(
        f"set-up     {set_up.seconds:.2f} s (connect {set_up.connect_s:.2f}, "
        f"compile {set_up.compile_s:.2f}, weights {set_up.weights_s:.2f}, "
        f"warm-up {set_up.warm_up_s:.2f})"
    )
    if (offline := record.offline) is not None:
        print(
            f"offline    {offline.received_bytes / 1e6:,.2f} MB from the dealer in "
            f"{offline.fetch_s:.2f} s, after a wait of {offline.wait_s:.2f} s; "
            f"{offline.held_bytes / 1e6:,.2f} MB held"
        )
    print(f"trusted    {trust}")


def _shown(result: "RunResult", index: int) -> str:
    """Return what is known of an image, and no more."""
    if index in result.refused:
        return "no answer"
    if result.reveal is Reveal.LOGITS:
        shown = ", ".join(f"{name} {100 * odds:.1f} %" for name, odds in _likeliest(result, index))
    else:
        shown = ", ".join(result.likeliest[index])
    if (rounded := result.rounded) is not None:
        shown += " (rounded logits " + " ".join(f"{value:.0f}" for value in rounded[index]) + ")"
    if index in result.close:
        shown += "; too close to be sure, as lowering may have changed which class is first"
    return shown


def _document(pictures: list[Path], result: "RunResult") -> dict[str, Any]:
    return {
        "reveal": result.reveal.value,
        "predictions": [
            {"image": str(picture), **_prediction(result, index)}
            for index, picture in enumerate(pictures)
        ],
        "resized": result.resized,
        "record": encode(result.record),
    }


def _prediction(result: "RunResult", index: int) -> dict[str, Any]:
    """Return what was revealed of an image; nothing if the answer was refused."""
    known: dict[str, Any] = {"refused": index in result.refused, "close": index in result.close}
    if known["refused"]:
        return known
    if result.reveal is Reveal.TOP5:
        return {**known, "top5": list(result.likeliest[index])}
    known["class"] = result.likeliest[index][0]
    if (rounded := result.rounded) is not None:
        known["rounded"] = [int(value) for value in rounded[index]]
    if result.reveal is Reveal.LOGITS and result.answers.values is not None:
        known["top"] = [
            {"class": name, "probability": odds} for name, odds in _likeliest(result, index)
        ]
        known["logits"] = list(result.answers.values[index])
    return known

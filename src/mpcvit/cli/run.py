"""`mpcvit run`."""

import hashlib
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.profile import DEALER_DEFAULT, SECURE_DEFAULT, load_profile
from mpcvit.artifacts.protocols import names_with
from mpcvit.artifacts.provenance import advice_on
from mpcvit.artifacts.record import Reveal
from mpcvit.artifacts.shipped import PROFILES, shipped_names
from mpcvit.cli import app, complete
from mpcvit.cli.answers import AnswersOption, Output, Resume, Stream, Strict, answer_pictures
from mpcvit.cli.options import AnyModelFile, AsJson
from mpcvit.errors import UserError

_PROFILES = (
    f"Protocol, ring and network: a TOML file, or one of {', '.join(shipped_names(PROFILES))}. "
    "Those with an insecure dealer (semi2k, semi2k-lan, semi2k-wan) are for measuring only."
)
ProfileName = Annotated[
    str,
    typer.Option("--profile", metavar="PROFILE", help=_PROFILES, autocompletion=complete.profile),
]
MaybeProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        autocompletion=complete.profile,
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
        help="What the data owner learns: the likeliest class, the set of the five likeliest, "
        "rounded logits with the class, or logits. All but logits are computed in the protocol.",
    ),
]
IgnoreMemory = Annotated[
    bool,
    typer.Option(
        "--ignore-memory",
        help="Start even if the forecast says that the model is too large for the memory here. "
        f"Only {names_with(has_forecast=True)} has one.",
    ),
]


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
            help="Run all parties as threads of one process: quick to start, same counts, no "
            "privacy, no network.",
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
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow a profile whose model owner makes the randomness, and could read every "
            "image. For measuring only.",
        ),
    ] = False,
    ignore_memory: IgnoreMemory = False,
    answers: AnswersOption = None,
    resume: Resume = False,
    out: RecordFile = None,
    as_json: AsJson = False,
    stream: Stream = False,
    strict: Strict = False,
) -> None:
    """Classify images privately, with every party a process on this machine.

    The process that holds the model sees no image, and the one that holds the
    images sees no weight. Shapes and architecture are known to both. Only the
    data owner learns the result. The line `trusted` of the output says who
    must be trusted under the profile.

    Example: mpcvit run runs/digits/model.safetensors photo.png --profile cheetah
    """
    from mpcvit.secure.run import default_profile_for, with_engine_of
    from mpcvit.secure.run import run as stage

    _require_order(model_file, images)
    settings = load_profile(profile or default_profile_for(model_file))
    if settings.warning and not (insecure or simulate):
        raise UserError(
            f"{settings.warning}; take --profile {DEALER_DEFAULT} or {SECURE_DEFAULT}, or add "
            "--insecure"
        )
    with_engine_of(model_file, settings)  # refuses a folder of anything else before it is read
    output = Output(
        out=out, answers=answers, resume=resume, as_json=as_json, stream=stream, strict=strict
    )
    classify = partial(
        stage,
        model_file,
        profile=settings,
        batch_size=batch_size,
        reveal=reveal,
        simulate=simulate,
        check_range=check_range,
        insecure=insecure,
        ignore_memory=ignore_memory,
    )
    asked = {"model": _digest(model_file), "reveal": reveal, "profile": settings.shared_settings()}
    answer_pictures(images, asked, settings, output, classify)


def _require_order(model: Path, images: list[Path]) -> None:
    """Refuse a model among the images if no model stands in its place."""
    models = [path for path in images if _looks_like_model(path)]
    if models and not _looks_like_model(model):
        raise UserError(
            f"the arguments seem swapped: {models[0]} looks like a model, and the model comes "
            f"first: mpcvit run {models[0]} {model}{' ...' if len(images) > 1 else ''}"
        )


def _looks_like_model(path: Path) -> bool:
    return path.suffix == ".safetensors" or bool(advice_on(path))


def _digest(model: Path) -> str:
    """Return the digest of a model's files."""
    digest = hashlib.sha256()
    files = sorted(model.rglob("*")) if model.is_dir() else [model]
    for file in (file for file in files if file.is_file()):
        digest.update(file.read_bytes())
    return digest.hexdigest()

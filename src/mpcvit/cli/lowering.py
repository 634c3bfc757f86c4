"""`mpcvit lower` and `mpcvit explain`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.artifacts.profile import SECURE_DEFAULT, load_profile
from mpcvit.cli import app, complete
from mpcvit.cli.options import AsJson, DataFolder, ModelFile
from mpcvit.cli.run import ProfileName
from mpcvit.cli.running import load_images
from mpcvit.cli.show import print_json, print_table
from mpcvit.errors import UserError
from mpcvit.lowering import ERROR_BUDGET, Guard

if TYPE_CHECKING:
    from mpcvit.lowering.program import SecureProgram


@app.command()
def lower(
    model_file: ModelFile,
    out: Annotated[Path, typer.Option("--out", help="Folder for the program.")],
    data: DataFolder = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            help="Folder of photos to calibrate with, at least 20; no labels are needed.",
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a photo that cannot be read.")
    ] = False,
    profile: ProfileName = SECURE_DEFAULT,
    images: Annotated[
        int, typer.Option(min=1, help="Photos or training images to calibrate with, at most.")
    ] = 1024,
    error_budget: Annotated[
        float,
        typer.Option(
            help="Maximum error of the logits: RMS error divided by their standard deviation."
        ),
    ] = ERROR_BUDGET,
    guard: Annotated[
        Guard,
        typer.Option(
            help="Whether private runs refuse an answer if a value left its interval. auto: if it "
            "costs at most 3 % of the seconds on a WAN.",
        ),
    ] = Guard.AUTO,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images at a time for which the dealer's scripts are made.")
    ] = 1,
    as_json: AsJson = False,
) -> None:
    """Turn a checkpoint into a program that computes the same in far fewer exchanges.

    Linear steps are folded into weights. Polynomials replace expensive functions,
    each over an interval that photos or training images stay within. Few images
    give wider intervals. The other party will know the intervals, but not the
    weights. For a profile with a dealer, the program also carries the scripts
    of its requests, so that nobody has to rehearse them.

    Example: mpcvit lower model.safetensors --calibrate photos --out program
    """
    if calibrate is not None and data is not None:
        raise UserError("--calibrate and --data exclude each other: give one folder")
    if strict and calibrate is None:
        raise UserError("--strict goes with --calibrate")
    settings = load_profile(profile)

    from mpcvit.data import Photos, read_photos, sample_evenly
    from mpcvit.lowering.program import require_place
    from mpcvit.make_program import lower as make_program
    from mpcvit.model.checkpoint import Checkpoint
    from mpcvit.report.live import counting

    checkpoint = Checkpoint.load(model_file)
    require_place(out, model_file.stat().st_size)
    with counting() as progress:
        chosen: Photos | list[Any]
        if calibrate is not None:
            model, settings_of_data = checkpoint.model, checkpoint.data
            chosen = read_photos(
                calibrate, model, settings_of_data, most=images, strict=strict, progress=progress
            )
        else:
            chosen = sample_evenly(load_images(checkpoint, data, "train", progress), images)
        program = make_program(
            checkpoint,
            chosen,
            settings,
            error_budget=error_budget,
            guard=guard,
            batch_size=batch_size,
            progress=progress,
        )
    program.save(out)
    _tell(program, as_json, chosen.skipped if isinstance(chosen, Photos) else ())


@app.command()
def explain(
    program_folder: Annotated[
        Path,
        typer.Argument(
            metavar="PROGRAM",
            help="Folder of a lowered program.",
            autocompletion=complete.program,
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the engine of a program, and the site, interval and error of each approximation.

    Example: mpcvit explain program
    """
    from mpcvit.lowering.program import SecureProgram

    _tell(SecureProgram.load(program_folder), as_json)


def _tell(program: "SecureProgram", as_json: bool, skipped: Sequence[str] = ()) -> None:
    from mpcvit.codec import encode

    rows, engine = _rows(program), encode(program.engine)
    if as_json:
        print_json(
            {
                "digest": program.digest(),
                "skipped": list(skipped),
                "engine": engine,
                "calibration": encode(program.calibration),
                "trust": encode(program.public.trust),
                "approximations": rows,
                "scripts": [
                    {"digest": own.digest, "steps": len(own.steps), "bytes": own.answer_bytes}
                    for own in program.public.scripts.values()
                ],
            }
        )
        return
    calibration = program.calibration
    print(f"program    {program.digest()}")
    print(
        f"engine     {engine['ring_bits']}-bit ring, {engine['fraction_bits']} fraction bits, "
        f"{engine['truncation']} truncation, "
        f"weight masks {'reused where it pays' if engine['reuse_weight_masks'] else 'fresh'}"
    )
    print(
        f"logits     off by {calibration.error:.2g} of their spread on {calibration.images:,} "
        f"images of calibration, within the budget of {calibration.error_budget:g}"
    )
    for sentence in skipped:
        print(f"skipped    {sentence}")
    _tell_trust(program)
    for own in program.public.scripts.values():
        print(
            f"dealer     {len(own.steps):,} steps and {own.answer_bytes / 1e6:,.1f} MB "
            f"{'once a session' if own.is_set_up else 'a batch'}, "
            f"script {own.digest[:16]}"
        )
    print_table(
        [row | {"error": "relative" if row["relative"] else "absolute"} for row in rows],
        {
            "site": "{site}",
            "approximation": "{approximation}",
            "from": "{low:.4g}",
            "to": "{high:.4g}",
            "error": "{error}",
            "declared": "{declared:.1e}",
            "measured": "{measured:.1e}",
            "exchanges": "{exchanges:d}",
        },
    )


def _tell_trust(program: "SecureProgram") -> None:
    """Print how far inputs may go, and what happens to those that go further."""
    trust, calibration = program.public.trust, program.calibration
    if calibration.agreeing:
        print(
            f"agreement  {calibration.agreeing:,} of {calibration.images:,} images of calibration "
            f"get the network's class; {calibration.left:,} leave an interval"
        )
    if calibration.widening > 1:
        print(
            f"margin     raised to the power {calibration.widening:g}, because "
            f"{calibration.images:,} images are few"
        )
    print(
        f"reach      intervals hold up to {calibration.reach:g} times the contrast of the images "
        "of calibration"
    )
    if calibration.leaving:
        print(f"           beyond, these leave theirs: {', '.join(calibration.leaving)}")
    verdicts = [entry.rpartition(": ") for entry in calibration.odd]
    for word in sorted({verdict for _, _, verdict in verdicts}):
        names = [name for name, _, own in verdicts if own == word]
        print(f"           {word}: {', '.join(names)}")
    cost = f": {calibration.guard_cost}" if calibration.guard_cost else ""
    print(f"guard      {'on' if trust.guard else 'off'}{cost}")
    if trust.bound:
        print(f"bounds     logits up to {trust.bound:.4g}; leads below {trust.doubt:.3g} are close")


def _rows(program: "SecureProgram") -> list[dict[str, Any]]:
    from mpcvit.codec import encode
    from mpcvit.lowering.fitting import largest_error

    return [
        {
            "site": label,
            "approximation": encode(approximation)["is"],
            "low": approximation.domain[0],
            "high": approximation.domain[1],
            "relative": approximation.is_relative,
            "declared": approximation.max_error,
            "measured": largest_error(approximation),
            "exchanges": approximation.exchanges,
        }
        for label, approximation in program.plan.items()
    ]

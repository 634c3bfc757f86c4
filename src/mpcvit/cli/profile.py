"""`mpcvit profile`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.architecture import Architecture, AttentionKind
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.private import ProfileName
from mpcvit.cli.show import print_json, print_table
from mpcvit.errors import UserError, nearest

if TYPE_CHECKING:
    from mpcvit.artifacts.config import ModelConfig

_USUAL_KINDS = (AttentionKind.RELU_SOFTMAX, AttentionKind.SCALING, AttentionKind.SOFTMAX)


@app.command(name="profile")
def profile_latency(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Checkpoint (.safetensors), config (TOML), or lowered program (folder).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Latency file to write (JSON).")],
    profile: ProfileName = "semi2k-wan",
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Attention kinds to price, between commas; relu_softmax, scaling and softmax, "
            "or those of a program, unless given."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what every choice of a network costs: the latency file that search reads.

    Each attention kind and MLP form is run under the profile's protocol and
    counted, exchanges and bytes apart, so that shared rounds can be priced. Of a
    lowered program, choices are priced as lowered networks with its stand-ins
    make them: there all heads share their products, and ratios differ.

    Example: mpcvit profile configs/digits.toml --out latency.json
    """
    wanted = None if kinds is None else _parse_kinds(kinds)
    settings = load_profile(profile)
    if not settings.network.is_emulated:
        raise UserError(f"profile {profile!r} names no network to price; take one, as semi2k-wan")

    from mpcvit.bench.latency import measure_latency, measure_lowered_latency
    from mpcvit.lowering.program import SecureProgram
    from mpcvit.report.live import counting

    with counting() as progress:
        if source.is_dir():
            program = SecureProgram.load(source)
            model = program.model
            wanted = wanted or _kinds_of(program.architecture)
            table = measure_lowered_latency(program, settings, wanted, progress)
        else:
            model, wanted = _model_of(source), wanted or _USUAL_KINDS
            table = measure_latency(model, settings, wanted, progress)
    table.save(out)
    rows = []
    for kind in wanted:
        cost = table.price(Architecture.uniform(kind, depth=model.depth, heads=model.heads))
        rows.append(
            {
                "attention": kind.value,
                "exchanges": round(cost.exchanges),
                "sent_mb": round(cost.sent_bytes / 1e6, 3),
                "compute_s": round(cost.compute_s, 3),
                "modelled_s": round(table.seconds(cost), 3),
            }
        )
    if as_json:
        print_json({"latency": str(out), "source": table.source, "networks": rows})
        return
    print_table(
        rows,
        {
            "every head": "{attention}",
            "exchanges": "{exchanges:,}",
            "MB sent": "{sent_mb:.2f}",
            "compute s": "{compute_s:.2f}",
            "modelled s": "{modelled_s:.2f}",
        },
    )
    if settings.warning:
        print(settings.warning)
    print(f"written to {out}")


def _model_of(source: Path) -> "ModelConfig":
    if source.suffix == ".toml":
        return load_config(source).model
    from mpcvit.model.checkpoint import Checkpoint

    return Checkpoint.load(source).model


def _kinds_of(architecture: Architecture) -> tuple[AttentionKind, ...]:
    """Those that a program has stand-ins for, and scaling, which needs none."""
    used = frozenset((AttentionKind.SCALING,)).union(*(own.kinds for own in architecture.layers))
    return tuple(sorted(used))


def _parse_kinds(text: str) -> tuple[AttentionKind, ...]:
    known = {kind.value: kind for kind in AttentionKind}
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UserError(f"there is no attention kind {name!r}; {nearest(name, list(known))}")
    return tuple(known[name] for name in names)

"""`mpcvit estimate`, `mpcvit profile`, `mpcvit search` and `mpcvit derive`."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import ModelConfig, SearchConfig, load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import SEARCH_FIGURE_FILE, SEARCH_FILE, judged_by
from mpcvit.cli import app
from mpcvit.cli.options import AsJson, ConfigFile, DataFolder, Overrides, configure
from mpcvit.cli.run import ProfileName
from mpcvit.cli.running import Fresh, Out, Resume, check_run_folder, run_training
from mpcvit.cli.show import print_json, print_pairs, print_table
from mpcvit.cores import split_cpu
from mpcvit.errors import UserError
from mpcvit.kinds.table import KINDS, Kind, parse_kinds

if TYPE_CHECKING:
    from mpcvit.artifacts.latency import LatencyTable
    from mpcvit.search.derive import Derived

LatencyFile = Annotated[
    Path | None,
    typer.Option("--latency", help="Latency file; modelled for this model unless given."),
]

_USUAL_KINDS = (SearchConfig.kept, SearchConfig.replacement, ModelConfig.attention)


@app.command()
def estimate(
    config_file: ConfigFile,
    out: Annotated[Path, typer.Option("--out", help="Latency file to write (JSON).")],
    overrides: Overrides = None,
    round_trip_ms: Annotated[
        float, typer.Option(help="Round trip of the network in milliseconds.")
    ] = 40.0,
    bandwidth_mb_per_s: Annotated[
        float, typer.Option(help="Bandwidth in MB/s, in each direction.")
    ] = 44.0,
    as_json: AsJson = False,
) -> None:
    """Model what every choice of a network costs when secure; runs nothing.

    The latency file gives exchanges and bytes per layer, attention kind and MLP
    form, from counts per operation. The default network is the paper's WAN.

    Example: mpcvit estimate configs/cifar10.toml --out latency.json
    """
    from mpcvit.artifacts.profile import NetworkLink
    from mpcvit.cost.estimate import estimate as stage

    model = configure(config_file, None, overrides).model
    network = NetworkLink(
        round_trip_ms=round_trip_ms, bandwidth_bytes_per_s=1e6 * bandwidth_mb_per_s
    )
    table = stage(model, network)
    table.save(out)
    rows = []
    for kind in KINDS.values():
        cost = table.price(Architecture.uniform(kind, depth=model.depth, heads=model.heads))
        rows.append(
            {
                "attention": kind.value,
                "exchanges": cost.exchanges,
                "sent_mb": cost.sent_bytes / 1e6,
                "modelled_s": table.seconds(cost),
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        rows,
        {
            "every head": "{attention}",
            "exchanges": "{exchanges:,.0f}",
            "MB sent": "{sent_mb:.1f}",
            "modelled s": "{modelled_s:.2f}",
        },
    )
    print(f"{table.source}\nwritten to {out}")


@app.command()
def search(
    config_file: ConfigFile,
    latency: LatencyFile = None,
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Out = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Search which heads need ReLU softmax, and which tokens need GeLU.

    Weights, alpha (per layer, head or row) and beta (per layer or token) are
    learnt together, with the seconds that they cost in the loss. Writes
    search.json, search.png and log.jsonl into the run folder; `mpcvit derive`
    turns them into architectures of any ratio or budget.

    Example: mpcvit search configs/digits.toml --out runs/search
    """
    config = configure(config_file, data, overrides)
    folder = out or config.folder
    check_run_folder(folder, resume=resume, fresh=fresh)
    table = _latency(latency, config.model)
    table.require_shape(config.model, str(latency or "the latency table"))
    split_cpu(config.train.batch_size)

    from mpcvit.search.task import search as stage

    result = run_training(stage, config, folder, latency=table, resume=resume)
    accuracy = result.provenance.top1 or 0.0
    split = judged_by(result.provenance.metrics)
    means = [sum(sum(rows) / len(rows) for rows in heads) / len(heads) for heads in result.alpha]
    if as_json:
        print_json(
            {
                "search": str(folder / SEARCH_FILE),
                "latency_source": table.source,
                "alpha_mean_per_layer": means,
                **result.provenance.metrics,
            }
        )
        return
    print_pairs(
        {
            "seconds": table.source,
            "mean alpha": "  ".join(f"{mean:.3f}" for mean in means) + "  (layers in order)",
            f"{split} accuracy": f"{100 * accuracy:.2f} % (of the mixture)",
            "search": folder / SEARCH_FILE,
            "figure": folder / SEARCH_FIGURE_FILE,
        }
    )


@app.command()
def derive(
    search_folder: Annotated[
        Path, typer.Argument(metavar="SEARCH", help="Run folder of a search, or its search.json.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Architecture to write (JSON).")],
    ratio: Annotated[
        float | None,
        typer.Option(
            "--relu-softmax-ratio",
            "--ratio",
            help="Fraction of heads (layers, rows) that keep the expensive attention kind.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--latency-budget", help="Seconds for the whole network, such as 12s."),
    ] = None,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="The same ratio in every layer (a baseline).")
    ] = False,
    gelu_threshold: Annotated[
        float | None,
        typer.Option(help="Tokens with a beta up to this drop GeLU; 0.75 where it was searched."),
    ] = None,
    mlp_form: Annotated[
        MlpForm, typer.Option(help="What tokens without GeLU compute.")
    ] = MlpForm.FUSED_RELU,
    latency: LatencyFile = None,
    as_json: AsJson = False,
) -> None:
    """Turn a search into an architecture, by ratio or by seconds.

    One search serves every ratio and budget. A budget is met exactly: the heads
    with the largest total alpha whose network fits. Equal alphas are broken in
    order of layer, head and row, and listed.

    Example: mpcvit derive runs/search --relu-softmax-ratio 0.5 --out arch.json
    """
    from dataclasses import replace

    from mpcvit.artifacts.latency import LatencyTable
    from mpcvit.artifacts.search import SearchResult
    from mpcvit.search.derive import (
        DEFAULT_GELU_THRESHOLD,
        MlpRule,
        derive_by_budget,
        derive_by_ratio,
    )

    if (ratio is None) == (budget is None):
        raise UserError("give either --relu-softmax-ratio or --latency-budget")
    if per_layer and ratio is None:
        raise UserError("--per-layer goes with --relu-softmax-ratio")
    result = SearchResult.load(search_folder)
    if latency is not None:
        table = LatencyTable.load(latency)
        table.require_shape(result.model, str(latency))
        result = replace(result, latency=table)
    rule = None
    if gelu_threshold is not None or result.beta:
        threshold = DEFAULT_GELU_THRESHOLD if gelu_threshold is None else gelu_threshold
        rule = MlpRule(threshold=threshold, form=mlp_form)
    if ratio is not None:
        derived = derive_by_ratio(result, ratio, per_layer=per_layer, mlp=rule)
    else:
        assert budget is not None
        derived = derive_by_budget(result, parse_seconds(budget), mlp=rule)
    derived.architecture.save(out)
    _tell(derived, result.latency, out, as_json)


def parse_seconds(text: str) -> float:
    """Seconds as people write them.

    >>> parse_seconds("12s"), parse_seconds("500ms"), parse_seconds("1.5min"), parse_seconds("7")
    (12.0, 0.5, 90.0, 7.0)
    """
    units = {"": 1.0, "s": 1.0, "ms": 1e-3, "min": 60.0}
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|ms|min|)", text.strip())
    if match is None:
        raise UserError(f"--latency-budget must be seconds such as 12s or 500ms, not {text!r}")
    return float(match[1]) * units[match[2]]


def _latency(path: Path | None, model: "ModelConfig") -> "LatencyTable":
    from mpcvit.artifacts.latency import LatencyTable
    from mpcvit.cost.estimate import estimate as model_latency

    return model_latency(model) if path is None else LatencyTable.load(path)


def _tell(derived: "Derived", table: "LatencyTable", out: Path, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "architecture": str(out),
                "kept": derived.kept,
                "units": derived.units,
                "kept_alpha": derived.kept_alpha,
                "exchanges": derived.cost.exchanges,
                "sent_bytes": derived.cost.sent_bytes,
                "seconds": derived.seconds,
                "latency_source": table.source,
                "ties": list(derived.tied_units),
            }
        )
        return
    print(derived.architecture.picture())
    ties = ", ".join(derived.tied_units)
    print_pairs(
        {
            "kept": f"{derived.kept} of {derived.units}, total alpha {derived.kept_alpha:.3f}",
            "seconds": f"{derived.seconds:.2f} ({table.source})",
            **({"ties": f"left out with an equal alpha: {ties}"} if ties else {}),
            "written": out,
        }
    )


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
            help=f"Attention kinds to price, between commas, of {', '.join(KINDS)}. "
            f"Default: {', '.join(map(str, _USUAL_KINDS))}, or those of a program."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what every choice of a network costs: the latency file that search reads.

    Each attention kind and MLP form is run under the profile's protocol and
    counted, exchanges and bytes apart, so that shared rounds can be priced. Of a
    lowered program, choices are priced as lowered networks with its approximations
    make them: there all heads share their products, and ratios differ.

    Example: mpcvit profile configs/digits.toml --out latency.json
    """
    wanted = None if kinds is None else parse_kinds(kinds)
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


def _model_of(source: Path) -> ModelConfig:
    if source.suffix == ".toml":
        return load_config(source).model
    from mpcvit.model.checkpoint import Checkpoint

    return Checkpoint.load(source).model


def _kinds_of(architecture: Architecture) -> tuple[Kind, ...]:
    """Return the kinds that a program has, and the one that a search takes in their place."""
    used = frozenset((SearchConfig.replacement,)).union(*(own.kinds for own in architecture.layers))
    return tuple(sorted(used, key=str))

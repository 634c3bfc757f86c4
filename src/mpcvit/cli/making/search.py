"""`mpcvit search` and `mpcvit derive`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.choices import DeriveConfig
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import SEARCH_FIGURE_FILE, SEARCH_FILE, judged_by
from mpcvit.artifacts.search import SearchResult
from mpcvit.cli import app, complete
from mpcvit.cli.making.start import From, begin_training
from mpcvit.cli.options import (
    AsJson,
    ConfigFile,
    DataFolder,
    LatencyFile,
    Overrides,
    parse_seconds,
)
from mpcvit.cli.running import Fresh, Out, Resume, run_training
from mpcvit.cli.show import print_json, print_pairs
from mpcvit.codec import decode
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.search.derive import Derived


@app.command()
def search(
    config_file: ConfigFile,
    latency: LatencyFile = None,
    data: DataFolder = None,
    overrides: Overrides = None,
    out: Out = None,
    start: From = None,
    resume: Resume = False,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Search which heads need the expensive attention kind, and where GeLU is needed.

    Weights, alpha (per layer, head or row) and beta (per layer or token) are
    learnt together, with the seconds that they cost in the loss. With search.choices,
    norms, activations and tokens are searched too. Writes search.json, search.png and
    log.jsonl into the run folder; `mpcvit derive` turns them into architectures of any
    ratio or budget.

    Example: mpcvit search digits --out runs/search
    """
    work = config_file, start, data, overrides, out
    config, folder, begun = begin_training(*work, resume=resume, fresh=fresh)
    config.require_searchable()

    from mpcvit.cost.estimate import estimate as model_latency
    from mpcvit.search.task import search as stage

    table = model_latency(config.model) if latency is None else LatencyTable.load(latency)
    table.require_shape(config.model, str(latency or "the latency table"))
    if not config.search.is_the_papers:
        table.require_choices(str(latency or "the modelled latency table"))

    result = run_training(stage, config, folder, latency=table, start=begun, resume=resume)
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
        Path,
        typer.Argument(
            metavar="SEARCH",
            help="Run folder of a search, or its search.json.",
            autocompletion=complete.search_folder,
        ),
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
        bool, typer.Option("--per-layer", help="Keep the same ratio in every layer (a baseline).")
    ] = False,
    gelu_threshold: Annotated[
        float | None,
        typer.Option(help="Largest beta of tokens that drop GeLU; 0.75 if GeLU was searched."),
    ] = None,
    mlp_form: Annotated[
        MlpForm, typer.Option(help="What tokens without GeLU compute.")
    ] = MlpForm.FUSED_RELU,
    layer_norm_every: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="If norms were searched: the whole residual passes a layer norm in at least one "
            "of this many layers in a row, and in the first or second; 0 for none. The search's "
            "derive.layer_norm_every unless given. With fewer layer norms, train with "
            "train.outlier_weight: otherwise values of some images grow too large, and trainings "
            "collapse.",
        ),
    ] = None,
    latency: LatencyFile = None,
    as_json: AsJson = False,
) -> None:
    """Turn a search into an architecture, by ratio or by seconds.

    One search serves every ratio and budget. A budget is met exactly: the network that
    keeps the largest total importance and fits. Between equal alphas the order of layer,
    head and row decides, and those left out are listed.

    Example: mpcvit derive runs/search --relu-softmax-ratio 0.5 --out arch.json
    """
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
    if gelu_threshold is not None or (result.beta and result.search.is_the_papers):
        threshold = DEFAULT_GELU_THRESHOLD if gelu_threshold is None else gelu_threshold
        rule = MlpRule(threshold=threshold, form=mlp_form)
    if ratio is not None:
        derived = derive_by_ratio(result, ratio, per_layer=per_layer, mlp=rule)
    else:
        assert budget is not None
        if layer_norm_every is None:
            settings = result.provenance.config.get("derive", {})
            layer_norm_every = decode(DeriveConfig, settings, str(search_folder)).layer_norm_every
        derived = derive_by_budget(
            result, parse_seconds(budget), mlp=rule, layer_norm_every=layer_norm_every
        )
    derived.architecture.save(out)
    _tell(derived, result.latency, out, as_json)


def _tell(derived: "Derived", table: LatencyTable, out: Path, as_json: bool) -> None:
    if as_json:
        names = ("kept", "units", "kept_alpha", "importance")
        print_json(
            {
                "architecture": str(out),
                **{name: getattr(derived, name) for name in names},
                "exchanges": derived.cost.exchanges,
                "sent_bytes": derived.cost.sent_bytes,
                "seconds": derived.seconds,
                "latency_source": table.source,
                "ties": list(derived.tied_units),
            }
        )
        return
    print(derived.architecture.picture())
    pairs: dict[str, Any] = {
        "kept": f"{derived.kept} of {derived.units}, total alpha {derived.kept_alpha:.3f}"
    }
    if derived.importance != derived.kept_alpha:
        pairs["importance"] = f"{derived.importance:.3f} of all choices"
    pairs["seconds"] = f"{derived.seconds:.2f} ({table.source})"
    if derived.tied_units:
        pairs["ties"] = f"left out with an equal alpha: {', '.join(derived.tied_units)}"
    print_pairs(pairs | {"written": out})

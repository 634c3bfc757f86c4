"""`mpcvit estimate` and `mpcvit profile`: what choices and runs cost."""

import os
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig, SearchConfig, load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.protocols import names_with
from mpcvit.artifacts.shipped import CONFIGS, shipped_names
from mpcvit.cli import app, complete
from mpcvit.cli.options import AsJson, Overrides
from mpcvit.cli.run import BatchSize, ProfileName
from mpcvit.cli.show import print_json, print_table
from mpcvit.cores import THREADS_VARIABLE, threads_of_party
from mpcvit.errors import UserError
from mpcvit.kinds.table import KINDS, Kind, parse_kinds
from mpcvit.storage import require_writable

_USUAL_KINDS = (SearchConfig.kept, SearchConfig.replacement, ModelConfig.attention)


@app.command()
def estimate(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Configuration (name or TOML), checkpoint (.safetensors), or lowered program.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Latency file to write for a configuration (JSON)."),
    ] = None,
    overrides: Overrides = None,
    round_trip_ms: Annotated[
        float, typer.Option(help="Round trip of the network in milliseconds.")
    ] = 40.0,
    bandwidth_mb_per_s: Annotated[
        float, typer.Option(help="Bandwidth in MB/s, in each direction.")
    ] = 44.0,
    batch_size: BatchSize = 1,
    as_json: AsJson = False,
) -> None:
    """Forecast seconds, bytes and memory of a private inference; runs nothing.

    Counts are those of SEMI2K with a dealer, for a network as it is written and
    lowered. There is no forecast for Cheetah or ABY3. A configuration gives a row
    for every attention kind, and with --out a latency file: exchanges and bytes per
    layer, kind and MLP form. The default network is the paper's WAN.

    Example: mpcvit estimate vit-base
    """
    from mpcvit.artifacts.profile import NetworkLink
    from mpcvit.cost.estimate import LOWERED_KINDS, MEMORY_ERROR, SOURCE, forecast
    from mpcvit.cost.estimate import estimate as stage
    from mpcvit.secure.memory import read_network

    network = NetworkLink(
        round_trip_ms=round_trip_ms, bandwidth_bytes_per_s=1e6 * bandwidth_mb_per_s
    )
    is_config = source.suffix == ".toml" or str(source) in shipped_names(CONFIGS)
    known = None if is_config else read_network(source)
    if known is None and not is_config and (source.is_dir() or source.suffix == ".safetensors"):
        from mpcvit.lowering.program import load_model

        load_model(source)  # says what is wrong with it
    if known is None:
        model = load_config(source, overrides or ()).model
        if out is not None:
            stage(model, network).save(out)
        networks = {
            kind.value: Architecture.uniform(kind, depth=model.depth, heads=model.heads)
            for kind in KINDS.values()
        }
        forms = (False, True)
    else:
        if out is not None or overrides:
            raise UserError("--out and --set go with a config, and not with a trained network")
        model, architecture, is_lowered = known
        networks, forms = {source.name: architecture}, (True,) if is_lowered else (False, True)
    rows = []
    for lowered, (name, architecture) in product(forms, networks.items()):
        if known is None and lowered and KINDS[name] not in LOWERED_KINDS:
            continue
        work = {"lowered": lowered, "network": network, "batch_size": batch_size}
        expected = forecast(model, architecture, **work)
        rows.append(
            {
                "protocol": names_with(has_forecast=True),
                "attention": name,
                "form": expected.form,
                "exchanges": expected.exchanges,
                "sent_mb": expected.sent_bytes / 1e6,
                "modelled_s": expected.seconds - expected.compute_s,
                "compute_s": expected.compute_s,
                "seconds": expected.seconds,
                "memory_gb": expected.memory_bytes / 1e9,
            }
        )
    if as_json:
        print_json(rows)
        return
    print_table(
        rows,
        {
            "network" if known else "every head": "{attention}",
            "form": "{form}",
            "exchanges": "{exchanges:,.0f}",
            "MB sent": "{sent_mb:,.1f}",
            "s of network": "{modelled_s:,.1f}",
            "s of computing": "{compute_s:,.1f}",
            "GB of memory": "{memory_gb:.1f}",
        },
    )
    print(
        f"{names_with(has_forecast=True)} with a dealer, without set-up; computing on two cores; "
        f"memory of the model owner, within {100 * MEMORY_ERROR:.0f} %\n"
        f"there is no forecast for {names_with(has_forecast=False)}, whose runs are not checked "
        "for memory"
    )
    if out is not None:
        print(f"{SOURCE}\nwritten to {out}")


@app.command(name="profile")
def profile_latency(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Checkpoint (.safetensors), configuration (TOML), or lowered program (folder).",
            autocompletion=complete.model,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Latency file to write (JSON).")],
    profile: ProfileName = "semi2k-wan",
    kinds: Annotated[
        str | None,
        typer.Option(
            help=f"Attention kinds to price, between commas, of {', '.join(KINDS)}. "
            f"Default: {', '.join(map(str, _USUAL_KINDS))}, or those of a program or a search."
        ),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="PROGRAM",
            help="Program whose approximations price lowered choices; shipped ones unless given.",
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Measure what every choice of a network costs: the latency file that search reads.

    Each attention kind and MLP form is run under the profile's protocol.
    Exchanges and bytes are counted apart, so that shared exchanges can be priced.
    For a lowered program, prices are those of lowered networks with its
    approximations, in which heads share products. The same holds for a
    configuration whose search.choices has norms, activations or tokens.

    Example: mpcvit profile digits --out latency.json
    """
    wanted = None if kinds is None else parse_kinds(kinds)
    settings = load_profile(profile)
    require_writable(out)
    # as in a party's process, before SPU starts: threads that wait would count as computing
    os.environ.setdefault(THREADS_VARIABLE, str(threads_of_party(settings.protocol.parties)))
    settings.require_network()

    from mpcvit.artifacts.resolve import fewer_tokens, made_explicit
    from mpcvit.bench.latency import (
        measure_choice_latency,
        measure_latency,
        measure_lowered_latency,
    )
    from mpcvit.bench.lowered import read_reference
    from mpcvit.cli.bench.tables import EXAMPLES
    from mpcvit.lowering.program import SecureProgram
    from mpcvit.model.checkpoint import Checkpoint
    from mpcvit.report.live import counting

    is_config = source.suffix == ".toml" or str(source) in shipped_names(CONFIGS)
    config = load_config(source, overrides or ()) if is_config else None
    with counting() as progress:
        if source.is_dir():
            program = SecureProgram.load(source)
            model = program.model
            wanted = wanted or _kinds_of(program.architecture)
            table = measure_lowered_latency(program, settings, wanted, progress)
        elif config is not None and not config.search.is_the_papers:
            config.require_searchable()
            model, wanted = config.model, wanted or (config.search.kept, config.search.replacement)
            references = [read_reference(path) for path in ([like] if like else EXAMPLES)]
            counts = fewer_tokens(model, config.search)
            table = measure_choice_latency(model, settings, wanted, counts, references, progress)
        else:
            model = config.model if config else Checkpoint.load(source).model
            wanted = wanted or _USUAL_KINDS
            table = measure_latency(model, settings, wanted, progress)
    table.save(out)
    rows = []
    for kind in wanted:
        uniform = Architecture.uniform(kind, depth=model.depth, heads=model.heads)
        cost = table.price(made_explicit(model, uniform))
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


def _kinds_of(architecture: Architecture) -> tuple[Kind, ...]:
    """Return the kinds that a program has, and the one that a search takes in their place."""
    used = frozenset((SearchConfig.replacement,)).union(*(own.kinds for own in architecture.layers))
    return tuple(sorted(used, key=str))

"""`mpcvit bench peers`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import (
    DEALER_PROFILE,
    EXAMPLES,
    PAPER_PROFILE,
    Out,
    is_delivered,
    known_networks,
)
from mpcvit.cli.options import AsJson, Overrides
from mpcvit.cli.show import print_table


@bench.command()
def peers(
    configs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="CONFIG...", help="Shapes: names or TOML files. [default: cifar10]"),
    ] = None,
    overrides: Overrides = None,
    only: Annotated[
        str, typer.Option("--networks", help="Of softmax, relu_softmax, scaling, between commas.")
    ] = "scaling",
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Run the same network on mpcvit, on plain SPU and on CrypTen, through the same emulated WAN.

    Prints seconds, bytes and exchanges of one image, as ratios to SPU's too, and
    whom one must trust. CrypTen's rows need PyTorch and CrypTen, which no
    extra installs. Weights are random, and CrypTen's logits are compared with plaintext.

    Example: mpcvit bench peers cifar10 deit-tiny --networks softmax --out peers.csv
    """
    from mpcvit.bench.lowered import read_reference
    from mpcvit.bench.peers import INSTALL_CRYPTEN, NETWORKS, bench_peers, is_crypten_there
    from mpcvit.report.live import counting

    networks = known_networks(only, list(NETWORKS))
    settings = list(overrides or [])
    models = {path.stem: load_config(path, settings).model for path in configs or [Path("cifar10")]}
    if not is_crypten_there():
        typer.echo(INSTALL_CRYPTEN, err=True)
    with counting() as progress:
        rows = bench_peers(
            models,
            load_profile(DEALER_PROFILE),
            load_profile(PAPER_PROFILE),
            [read_reference(path) for path in EXAMPLES],
            networks=networks,
            progress=progress,
        )
    if is_delivered(rows, out, as_json):
        return
    print_table(
        rows,
        {
            "shape": "{config}",
            "network": "{network}",
            "engine": "{engine}",
            "s": "{measured_s:.1f}",
            "of SPU's": "{s_of_spu:.2f}",
            "MB sent": "{sent_mb:.1f}",
            "of SPU's MB": "{mb_of_spu:.2f}",
            "exchanges": "{exchanges:,}",
            "of SPU's exchanges": "{rounds_of_spu:.2f}",
        },
    )
    for engine in dict.fromkeys(row["engine"] for row in rows):
        trusted = next(row["trusted"] for row in rows if row["engine"] == engine)
        print(f"{engine}: {trusted}")

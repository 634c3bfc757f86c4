"""`mpcvit bench tunnel`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import NetworkLink, load_profile
from mpcvit.cli import complete
from mpcvit.cli.bench import bench
from mpcvit.cli.bench.tables import SECONDS_AN_IMAGE, Out, is_delivered, known_networks
from mpcvit.cli.options import AsJson, ConfigFile
from mpcvit.cli.show import print_table


@bench.command()
def tunnel(
    config_file: ConfigFile = Path("cifar10-tiny"),
    network: Annotated[
        str, typer.Option(help="Network of the paper.", autocompletion=complete.network)
    ] = "relu_softmax",
    images: Annotated[
        int, typer.Option(min=2, help="Images of a run; the first one is not counted.")
    ] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Runs over each link, in turns.")] = 3,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Compare the tunnel between hosts with SPU's own TLS link.

    Both carry the same inferences in turns, through the emulated WAN (44 MB/s, 40 ms) and
    on loopback as it is. The model owner makes the randomness here, which is insecure, and
    does not change what the links cost.

    Example: mpcvit bench tunnel --out results/secure/tunnel.csv
    """
    config = load_config(config_file).model

    from mpcvit.bench.networks import paper_networks, random_checkpoint
    from mpcvit.bench.tunnel import bench_tunnel
    from mpcvit.report.live import counting

    architectures = paper_networks(config)
    (name,) = known_networks(network, list(architectures))
    model = random_checkpoint(config, architectures[name])
    networks = {"wan": load_profile("semi2k-wan").network, "loopback": NetworkLink()}
    with counting() as progress:
        rows = bench_tunnel(
            model,
            load_profile("semi2k"),
            networks,
            images=images,
            rounds=rounds,
            progress=progress,
        )
    if is_delivered(rows, out, as_json):
        return
    columns = {"network": "{network}", "link": "{link}", **SECONDS_AN_IMAGE}
    print_table(rows, {**columns, "of SPU's own TLS link": "{of_spu_tls:.3f}"})

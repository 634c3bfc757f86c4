"""Compare the tunnel between hosts with SPU's own TLS link.

    python tools/bench_tunnel.py --out results/secure/tunnel.csv

Both carry the same inferences in turns, through the emulated WAN (44 MB/s, 40 ms) and on
loopback as it is. The model owner makes the randomness here, which is insecure, and does not
change what the links cost.
"""

import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from secrets import token_hex
from typing import Annotated

import numpy as np
import typer

from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import NetworkLink, Profile, load_profile
from mpcvit.artifacts.provenance import write_rows
from mpcvit.artifacts.record import RunRecord
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.bench.rows import Row, row_context, spread
from mpcvit.cli.show import print_table
from mpcvit.errors import UserError
from mpcvit.hosts.certificates import make_certificates
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.progress import Progress
from mpcvit.report.live import counting
from mpcvit.secure.parties.events import Journal
from mpcvit.secure.parties.roles import ROLES, Address, Role, free_addresses
from mpcvit.secure.parties.supervise import PartyProcess, watch
from mpcvit.secure.parties.wan import Relay, Route
from mpcvit.secure.predict import predict
from mpcvit.secure.run import image_arguments, make_result, model_arguments
from mpcvit.secure.serve import ServeLimits, serve


def bench_tunnel(
    model: Checkpoint,
    profile: Profile,
    networks: dict[str, NetworkLink],
    *,
    images: int,
    rounds: int,
    progress: Progress,
) -> list[Row]:
    """Run images over both links in turns, through each network."""
    pictures = random_images(model.model, images)
    rows: list[Row] = []
    for name, network in networks.items():
        seconds: dict[str, list[float]] = {"spu-tls": [], "tunnel": []}
        exchanges = 0
        for index in range(rounds):
            for link, run in (("spu-tls", _run_over_spu_link), ("tunnel", _run_through_tunnel)):
                record = run(model, pictures, profile, network)
                # the first image pays for what is set up on first use
                later = record.batches[1:] or record.batches
                seconds[link] += [batch.total.seconds for batch in later]
                exchanges = record.exchanges // images
            progress(f"{name} rounds", index + 1, rounds)
        rows += [
            {
                "network": name,
                "link": link,
                "inferences": len(of_link),
                **spread(of_link, of_spu_tls=seconds["spu-tls"]),
                "exchanges": exchanges,
                **row_context(model.model, profile),
                "round_trip_ms": network.round_trip_ms,
                "bandwidth_mb_per_s": network.bandwidth_bytes_per_s / 1e6,
            }
            for link, of_link in seconds.items()
        ]
    return rows


def _run_over_spu_link(
    model: Checkpoint, pictures: np.ndarray, profile: Profile, network: NetworkLink
) -> RunRecord:
    """Let SPU listen on ports of loopback, with its own TLS."""
    roles = ROLES[profile.protocol]
    journal = Journal()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mpcvit-")))
        # both ends of SPU's link are dialled, so both need a server's certificate
        make_certificates(folder / "certs", names=("server",))
        listening = dict(zip(roles, free_addresses(len(roles)), strict=True))
        routes = {
            role: Route(dialler=other.name, dialled=role.name, target=listening[role])
            for role, other in zip(roles, reversed(roles), strict=True)
        }
        dialled: dict[Role, Address] = listening
        if network.is_emulated:
            relay = stack.enter_context(Relay(network, list(routes.values())))
            dialled = {role: relay.addresses[route] for role, route in routes.items()}
        own = {
            Role.MODEL_OWNER: model_arguments(model, folder),
            Role.DATA_OWNER: image_arguments(pictures, 1),
        }
        parties = []
        for role in roles:
            (folder / role.name).mkdir()
            home = folder / role.name
            party = PartyProcess(role, own[role], home, scratch=folder, parties_here=len(own))
            parties.append(stack.enter_context(party))
        session = token_hex(16)
        for party in parties:
            addresses = {**dialled, party.role: listening[party.role]}
            party.connect(addresses, session, profile, tls=folder / "certs" / "server")
        watch(parties, profile, journal)
    return make_result(journal, profile, transport="processes").record


def _run_through_tunnel(
    model: Checkpoint, pictures: np.ndarray, profile: Profile, network: NetworkLink
) -> RunRecord:
    """Serve on a port of loopback, and predict through it."""
    (address,) = free_addresses(1)
    started, failures = threading.Event(), []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mpcvit-")))
        make_certificates(folder / "certs")

        def offer() -> None:
            try:
                serve(
                    model,
                    listen=address,
                    tls=folder / "certs" / "server",
                    profile=profile,
                    limits=ServeLimits(clients=1),
                    max_sessions=1,
                    started=started.set,
                )
            except UserError as error:
                failures.append(error)
                started.set()

        thread = threading.Thread(target=offer)
        thread.start()
        started.wait()
        if failures:
            raise failures[0]
        server = address
        if network.is_emulated:
            route = Route(dialler="client", dialled="server", target=address)
            server = stack.enter_context(Relay(network, [route])).addresses[route]
        result = predict(pictures, server=server, tls=folder / "certs" / "client", profile=profile)
        thread.join()
    return result.record


def main(
    config: Annotated[Path, typer.Argument(help="Configuration (name or TOML).")] = Path(
        "cifar10-tiny"
    ),
    network: Annotated[str, typer.Option(help="Name of a network of the paper.")] = "relu_softmax",
    images: Annotated[
        int, typer.Option(min=2, help="Images of a run; the first one does not count.")
    ] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each link, in turns.")] = 3,
    out: Annotated[Path | None, typer.Option(help="CSV file for the rows.")] = None,
) -> None:
    model = load_config(config).model
    links = {"wan": load_profile("semi2k-wan").network, "loopback": NetworkLink()}
    with counting() as progress:
        rows = bench_tunnel(
            random_checkpoint(model, paper_networks(model)[network]),
            load_profile("semi2k"),
            links,
            images=images,
            rounds=rounds,
            progress=progress,
        )
    if out is not None:
        write_rows(out, rows)
    columns = {"network": "{network}", "link": "{link}", "s an image": "{median_s:.3f}"}
    columns |= {"fastest": "{fastest_s:.3f}", "slowest": "{slowest_s:.3f}"}
    print_table(rows, {**columns, "of SPU's own TLS link": "{of_spu_tls:.3f}"})


if __name__ == "__main__":
    typer.run(main)

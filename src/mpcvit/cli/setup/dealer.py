"""`mpcvit dealer`: a third organisation that makes SEMI2K's randomness."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.running import until_stopped
from mpcvit.cli.show import print_json
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.dealer.server import DealerLogLine

dealer = typer.Typer(
    no_args_is_help=True,
    help="Be the dealer of two other organisations: make correlated randomness for them.",
)
app.add_typer(dealer, name="dealer")


KeyFolder = Annotated[
    Path, typer.Option("--keys", metavar="DIR", help="Key folder of `mpcvit dealer keys`.")
]
Records = Annotated[
    Path | None,
    typer.Option(
        help="SQLite file for open jobs and used seeds; jobs.sqlite beside the key unless given. "
        "Keep it as long as the key."
    ),
]


@dealer.command()
def keys(
    out: Annotated[Path, typer.Option("--out", help="Folder for the keys.")] = Path("dealer"),
    as_json: AsJson = False,
) -> None:
    """Make the dealer's key pair.

    Give public.pem to both parties, over a channel that you trust. Keep
    private.pem at the dealer: its holder can read what the parties compute.

    Example: mpcvit dealer keys --out dealer
    """
    from mpcvit.dealer.keys import PRIVATE_FILE, PUBLIC_FILE, make_keys

    public = make_keys(out)
    if as_json:
        print_json({"folder": str(out), "fingerprint": public.fingerprint})
        return
    print(f"{out / PUBLIC_FILE}  for both parties, SHA-256 {public.fingerprint}")
    print(f"{out / PRIVATE_FILE}  for the dealer alone")


@dealer.command()
def serve(
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address for the parties.")],
    key_folder: KeyFolder,
    tls: Annotated[
        Path,
        typer.Option(
            "--tls", metavar="DIR", help="The dealer's folder, as `mpcvit certs` makes it."
        ),
    ],
    records: Records = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that share the work.")] = 1,
    jobs_per_minute: Annotated[
        int, typer.Option(min=1, help="Most jobs that each certificate may send in a minute.")
    ] = 60,
    idle_hours: Annotated[
        float, typer.Option(min=0.01, help="Hours until an idle job is forgotten.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Make randomness for jobs that both parties have authorised, until stopped.

    Prints a line for each connection: who asked for what, how many bytes and
    seconds it took and how it ended. The dealer sees neither model nor images.
    With what passes between the parties it could read both. So it must belong
    to neither party, and not to the operator of their network.

    Example: mpcvit dealer serve --listen dealer.example.org:9100 --keys dealer \
--tls certs/dealer
    """
    # its processes share the cores; must be set before NumPy is loaded
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import socket

    from mpcvit.dealer.keys import load_private_key
    from mpcvit.dealer.server import serve_dealer
    from mpcvit.dealer.table import JobLimits, JobTable
    from mpcvit.hosts.credentials import ListeningContext, load_credentials, protect_memory
    from mpcvit.hosts.door import why_no_door
    from mpcvit.hosts.peer import DEALER
    from mpcvit.secure.parties.roles import resolve

    protect_memory()
    key = load_private_key(key_folder)
    certificates = ListeningContext(
        load_credentials(tls, DEALER), lambda sentence: typer.echo(f"note: {sentence}", err=True)
    )
    limits = JobLimits(idle_s=3600 * idle_hours, jobs_per_minute=jobs_per_minute)
    table = JobTable(_place(records, key_folder), key, limits)

    def log(line: "DealerLogLine") -> None:
        print(json.dumps(line.to_dict()) if as_json else line, flush=True)

    try:
        listener = socket.create_server(resolve(listen))
    except OSError as error:
        raise UserError(f"cannot listen on {listen}: {why_no_door(error)}") from error
    with listener, until_stopped() as stop:
        typer.echo(f"dealing at {listen}; Ctrl-C ends", err=True)
        serve_dealer(
            listener,
            certificates.latest,
            table,
            key.public.fingerprint,
            stop=stop,
            log=log,
            workers=workers,
        )
    typer.echo(_shown(table.totals()), err=True)


@dealer.command()
def metrics(key_folder: KeyFolder, records: Records = None, as_json: AsJson = False) -> None:
    """Print what the dealer has served since its records were made, also while it serves.

    Seconds are those of computing and sending, and CPU seconds those of computing.

    Example: mpcvit dealer metrics --keys dealer
    """
    from mpcvit.dealer.keys import load_private_key
    from mpcvit.dealer.table import JobTable

    key, place = load_private_key(key_folder), _place(records, key_folder)
    if not place.is_file():
        raise UserError(f"there are no records in {place}; has the dealer served yet?")
    totals = JobTable(place, key).totals()
    if as_json:
        print_json(totals)
    else:
        print(_shown(totals))


def _place(records: Path | None, key_folder: Path) -> Path:
    return records or key_folder / "jobs.sqlite"


def _shown(totals: Mapping[str, float]) -> str:
    return (
        f"served so far: {totals['jobs']:.0f} jobs, {totals['inferences']:.0f} inferences, "
        f"{totals['sent_bytes'] / 1e6:,.1f} MB, {totals['seconds']:.1f} s, with "
        f"{totals['cpu_seconds']:.1f} s CPU"
    )

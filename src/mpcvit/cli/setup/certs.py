"""`mpcvit certs`: certificates of server, clients and dealer."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.show import print_json
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.hosts.certificates import Issued

certs = typer.Typer(invoke_without_command=True)
app.add_typer(certs, name="certs")

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of all certificates.")]
Days = Annotated[int, typer.Option(min=1, help="Days for which certificates are valid.")]
StateUrl = Annotated[
    str | None,
    typer.Option(
        "--state",
        metavar="URL",
        help="PostgreSQL database of several servers, whose list of clients changes too.",
    ),
]


@certs.callback()
def make(
    context: typer.Context,
    out: Out = Path("certs"),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Name or address at which the server is reached; repeat it for several. The "
            "default is localhost and 127.0.0.1.",
        ),
    ] = None,
    dealer_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--dealer-host",
            help="Name or address at which the dealer is reached; makes a certificate for it too.",
        ),
    ] = None,
    days: Days = 365,
    names: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="NAMES",
            help="Hosts to make certificates for, between commas: server, dealer, or names of "
            "clients.",
        ),
    ] = "server,client",
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Replace what is there, the authorities included."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a private authority, and a certificate for the server and for a client.

    Give the folder `server` to the host of the model and `client` to the host of the images,
    each over a channel that you trust. Keep `ca` offline. Each folder lists the
    certificates that its host accepts. With --dealer-host there is a `dealer` too, with an
    authority of its own. No certificate outlives its authority, and --fresh makes all
    of them again.

    Example: mpcvit certs --out certs --host model.example.org
    """
    if context.invoked_subcommand is not None:
        return
    from mpcvit.hosts.certificates import (
        AUTHORITY_FOLDER,
        DEALER_AUTHORITY_FOLDER,
        THIS_MACHINE,
        make_certificates,
        names_listed,
    )

    issued = make_certificates(
        out,
        names=names_listed(f"{names},dealer" if dealer_hosts else names),
        hosts=hosts or THIS_MACHINE,
        dealer_hosts=dealer_hosts or THIS_MACHINE,
        days=days,
        fresh=fresh,
    )
    if as_json:
        print_json(
            {
                "folders": {name: str(folder) for name, folder in issued.folders.items()},
                "fingerprints": issued.fingerprints,
                "expires": issued.expires.isoformat(timespec="seconds"),
            }
        )
        return
    for name, folder in issued.folders.items():
        print(f"{folder}  for the {name}, SHA-256 {issued.fingerprints[name]}")
    print(f"{out / AUTHORITY_FOLDER}  the authority: keep it offline")
    if (out / DEALER_AUTHORITY_FOLDER).exists():
        print(f"{out / DEALER_AUTHORITY_FOLDER}  the dealer's authority: keep it offline")
    _tell_end(issued, days)


@certs.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the new client.")],
    out: Out = Path("certs"),
    days: Days = 365,
    state: StateUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a certificate for one more client, and put it on the server's list.

    Give the folder NAME to the client, copy server/allowed.txt to the server, and send the
    server SIGHUP: `systemctl reload mpcvit-serve`.

    Example: mpcvit certs add hospital --out certs
    """
    from mpcvit.hosts.certificates import AUTHORITY_FOLDER, make_certificates
    from mpcvit.hosts.peer import DEALER, SERVER

    if name in (SERVER, DEALER):
        raise UserError(f"'{name}' is not the name of a client; `mpcvit certs --help` says more")
    if not (out / AUTHORITY_FOLDER).is_dir():
        raise UserError(f"there is no authority in {out}; `mpcvit certs --out {out}` makes one")
    issued = make_certificates(out, names=(name,), days=days)
    fingerprint = issued.fingerprints[name]
    if state:
        from mpcvit.secure.service.quota import open_state

        with closing(open_state(state)) as database:
            database.allow(name, fingerprint)
    if as_json:
        expires = issued.expires.isoformat(timespec="seconds")
        folder = str(issued.folders[name])
        print_json({"folder": folder, "fingerprint": fingerprint, "expires": expires})
        return
    print(f"{issued.folders[name]}  for the client '{name}', SHA-256 {fingerprint}")
    print(f"{out / 'server' / 'allowed.txt'}  for the server, which reads it again on SIGHUP")
    _tell_end(issued, days)


def _tell_end(issued: "Issued", days: int) -> None:
    """Print how long certificates are valid, and why that is shorter than asked for."""
    end = f"valid until {issued.expires:%Y-%m-%d %H:%M} UTC"
    if issued.missing_days:
        end += f", when the authority ends: {days - issued.missing_days} days instead of {days}; "
        end += "`mpcvit certs --fresh` makes everything again"
    print(end)


@certs.command()
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the client.")],
    out: Out = Path("certs"),
    state: StateUrl = None,
) -> None:
    """Take a client off the server's list.

    Copy server/allowed.txt to the server's host, and send the server SIGHUP.
    It then refuses the client, and ends its sessions.

    Example: mpcvit certs revoke hospital --out certs
    """
    from mpcvit.hosts.certificates import revoke_client

    revoke_client(out, name)
    if state:
        from mpcvit.secure.service.quota import open_state

        with closing(open_state(state)) as database:
            database.revoke(name)
    print(f"'{name}' is no longer allowed; send the server SIGHUP")

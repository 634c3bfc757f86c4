"""`mpcvit certs`, `mpcvit serve` and `mpcvit predict`: private inference between two hosts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AnyModelFile, AsJson, print_json
from mpcvit.cli.private import BatchSize, Pictures, RecordFile, RevealOption, tell
from mpcvit.cli.stopping import until_stopped
from mpcvit.profile import DEALER_DEFAULT, SECURE_DEFAULT, default_profile, load_profile
from mpcvit.run_record import Reveal

if TYPE_CHECKING:
    from mpcvit.runtime.serve import Visit

TlsFolder = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="Folder with this party's key and certificate, as `mpcvit certs` makes it. Needed "
        "wherever an address is not on this machine.",
    ),
]
AllowPlaintext = Annotated[
    bool,
    typer.Option(
        "--allow-plaintext",
        help="Do without --tls between machines: everyone on the way can read and change what "
        "passes, and so learn every secret.",
    ),
]

HostsProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        help="Protocol, ring and limits: a TOML file, or the name of one that comes with mpcvit. "
        f"{SECURE_DEFAULT} unless given, {DEALER_DEFAULT} with --dealer.",
    ),
]
DealerAddress = Annotated[
    str | None,
    typer.Option(
        "--dealer",
        metavar="HOST:PORT",
        help="Where `mpcvit dealer serve` listens, for a profile with a dealer.",
    ),
]
DealerKey = Annotated[
    Path | None,
    typer.Option("--dealer-key", metavar="FILE", help="The dealer's public.pem."),
]


@app.command()
def certs(
    out: Annotated[Path, typer.Option("--out", help="Folder to make.")] = Path("certs"),
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Name or address at which the server is reached; repeat it for several. "
            "localhost and 127.0.0.1 if none is given.",
        ),
    ] = None,
    dealer_hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--dealer-host",
            help="Name or address at which the dealer is reached; makes a certificate for it too.",
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 365,
    parties: Annotated[
        str,
        typer.Option("--for", metavar="NAMES", help="Whom to make certificates for."),
    ] = "server,client",
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Replace what is there, the authority included."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a private authority and a certificate for each of two parties.

    Give the folder `server` to the host of the model and `client` to the host
    of the images, each over a channel that you trust; `ca` goes to neither, and
    is best kept offline. With --dealer-host there is a `dealer` too. One
    authority serves one pair: whoever holds a certificate of it is believed.

    Example: mpcvit certs --out certs --host model.example.org
    """
    from mpcvit.runtime.certificates import THIS_MACHINE, make_certificates, roles_named

    issued = make_certificates(
        out,
        roles=roles_named(f"{parties},dealer" if dealer_hosts else parties),
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
    print(f"{out / 'ca'}  the authority: keep it offline")
    print(f"valid until {issued.expires:%Y-%m-%d %H:%M} UTC")


@app.command()
def serve(
    model_file: AnyModelFile,
    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where clients say hello."),
    ],
    tls: TlsFolder = None,
    profile: HostsProfile = None,
    reveal: RevealOption = Reveal.CLASS,
    link_port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65535,
            help="Port of the computation; by default the one above that of --listen.",
        ),
    ] = None,
    dealer: DealerAddress = None,
    dealer_key: DealerKey = None,
    allow_plaintext: AllowPlaintext = False,
    max_clients: Annotated[
        int | None, typer.Option(min=1, help="End after so many sessions.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Offer a model to clients on other hosts, one after another, until stopped.

    Prints a line for each connection: who came, what it cost and how it ended.
    The images stay with the client, and so does the result; the weights stay
    here. The client learns the model's shape, architecture and class names, and of
    each image what --reveal says.

    Example: mpcvit serve model.safetensors --listen model.example.org:9000 --tls certs/server
    """
    from mpcvit.runtime.run import default_for
    from mpcvit.runtime.serve import serve as stage

    settings = load_profile(profile or default_for(model_file, dealer))

    def started() -> None:
        if settings.warning:
            typer.echo(f"note: {settings.warning}", err=True)
        typer.echo(f"serving {model_file} at {listen}; Ctrl-C ends", err=True)

    def log(visit: "Visit") -> None:
        print(json.dumps(visit.to_dict()) if as_json else visit, flush=True)

    with until_stopped() as stop:
        stage(
            model_file,
            listen=listen,
            tls=tls,
            profile=settings,
            reveal=reveal,
            link_port=link_port,
            dealer=dealer,
            dealer_key=dealer_key,
            allow_plaintext=allow_plaintext,
            max_clients=max_clients,
            stop=stop,
            started=started,
            log=log,
        )


@app.command()
def predict(
    images: Pictures,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where `mpcvit serve` listens.")],
    listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="This host's address and a free port, which the server dials back.",
        ),
    ],
    tls: TlsFolder = None,
    profile: HostsProfile = None,
    batch_size: BatchSize = 1,
    dealer: DealerAddress = None,
    dealer_key: DealerKey = None,
    allow_plaintext: AllowPlaintext = False,
    out: RecordFile = None,
    as_json: AsJson = False,
) -> None:
    """Classify images privately with a model that another host serves.

    The server does not see the images, and this host does not see the weights;
    only this host learns the result. The profile must be the server's.

    Example: mpcvit predict photo.png --server model.example.org:9000 \
--listen 192.0.2.7:9001 --tls certs/client
    """
    from mpcvit.data import list_pictures

    settings = load_profile(profile or default_profile(dealer))
    pictures = list_pictures(images)

    from mpcvit.report.live import counting
    from mpcvit.runtime.predict import predict as stage

    with counting() as progress:
        result = stage(
            pictures,
            server=server,
            listen=listen,
            tls=tls,
            profile=settings,
            batch_size=batch_size,
            dealer=dealer,
            dealer_key=dealer_key,
            allow_plaintext=allow_plaintext,
            progress=progress,
        )
    tell(pictures, result, settings, out=out, as_json=as_json)

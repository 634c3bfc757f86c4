"""`mpcvit serve` and `mpcvit predict`: private inference between two hosts."""

import json
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mpcvit.artifacts.profile import DEALER_DEFAULT, SECURE_DEFAULT, default_profile, load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.cli import app, complete
from mpcvit.cli.answers import AnswersOption, Output, Resume, Stream, Strict, answer_pictures
from mpcvit.cli.options import AsJson
from mpcvit.cli.run import BatchSize, IgnoreMemory, Pictures, RecordFile, RevealOption
from mpcvit.cli.running import until_stopped
from mpcvit.cli.show import print_json, print_pairs
from mpcvit.errors import UserError

if TYPE_CHECKING:
    from mpcvit.secure.service.visit import ConnectionLogLine

TlsFolder = Annotated[
    Path,
    typer.Option(
        "--tls",
        metavar="DIR",
        help="Folder with this host's key and certificate, as `mpcvit certs` makes it.",
    ),
]
InsecureFirstParty = Annotated[
    bool,
    typer.Option(
        "--insecure-first-party",
        help="Allow a profile whose model owner makes the randomness, and could read every "
        "image. For measurements between machines only.",
    ),
]
HostsProfile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="PROFILE",
        autocompletion=complete.profile,
        help="Protocol, ring and limits: a TOML file, or the name of a profile that comes with "
        f"mpcvit. The default is {SECURE_DEFAULT}, and {DEALER_DEFAULT} with --dealer.",
    ),
]
DealerAddress = Annotated[
    str | None,
    typer.Option(
        "--dealer",
        metavar="HOST:PORT",
        help="Address of `mpcvit dealer serve`, for a profile with a dealer.",
    ),
]
DealerKey = Annotated[
    Path | None,
    typer.Option("--dealer-key", metavar="FILE", help="The dealer's public.pem."),
]
ServerAddress = Annotated[
    str, typer.Option("--server", metavar="HOST:PORT", help="Address of `mpcvit serve`.")
]
Wait = Annotated[
    float,
    typer.Option(min=0, metavar="SECONDS", help="Longest time in the server's queue, in seconds."),
]
METRICS = "127.0.0.1:9464"


@app.command()
def serve(
    model_file: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="Checkpoint, or folder of a lowered program.",
            autocompletion=complete.model,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of the one port that clients dial."),
    ] = None,
    tls: Annotated[
        Path | None,
        typer.Option(
            "--tls",
            metavar="DIR",
            help="Folder with the server's key and certificate, as `mpcvit certs` makes it.",
        ),
    ] = None,
    profile: HostsProfile = None,
    reveal: RevealOption = Reveal.CLASS,
    dealer: DealerAddress = None,
    dealer_key: DealerKey = None,
    clients: Annotated[
        int,
        typer.Option(
            min=0,
            help="Sessions at the same time, each with a loaded model. The default is the number "
            "of cores, at most 8.",
            show_default=False,
        ),
    ] = 0,
    queue: Annotated[int, typer.Option(min=0, help="Most clients that may wait for a place.")] = 16,
    max_images: Annotated[int, typer.Option(min=1, help="Most images in one session.")] = 10_000,
    max_batch: Annotated[int, typer.Option(min=1, help="Most images at a time.")] = 64,
    max_images_per_day: Annotated[
        int,
        typer.Option(
            min=0,
            help="Most images of one client in a day (UTC), which limits how much of the model it "
            "can copy by asking. 0 means no limit.",
        ),
    ] = 0,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Where images are counted: an SQLite file, or postgresql://USER@HOST/NAME for "
            "several servers. The database then also holds the allowed clients.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Address at which clients reach this very host, if a load balancer stands "
            "before it.",
        ),
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT|none",
            help="Address on this machine that shows numbers to Prometheus.",
        ),
    ] = METRICS,
    status: Annotated[
        bool,
        typer.Option("--status", help="Print the numbers of the server that runs, and end."),
    ] = False,
    insecure_first_party: InsecureFirstParty = False,
    ignore_memory: IgnoreMemory = False,
    as_json: AsJson = False,
) -> None:
    """Offer a model to clients on other hosts, many at a time, until stopped.

    One port is open. Clients dial it over TLS, each with a certificate that is on the
    server's list. The command prints a line for each client: who came, the cost and how it
    ended. The images and the answers stay with the client, and the weights stay here. The
    client learns the model's shape, architecture and class names, and of each image what
    --reveal says.

    Example: mpcvit serve model.safetensors --listen 0.0.0.0:9000 --tls certs/server
    """
    if status:
        _print_status(metrics, as_json=as_json)
        return
    if model_file is None or listen is None or tls is None:
        raise UserError("name a model, --listen and --tls; `mpcvit serve --help` has an example")
    from mpcvit.secure.run import default_profile_for
    from mpcvit.secure.serve import ServeLimits
    from mpcvit.secure.serve import serve as stage

    settings = load_profile(profile or default_profile_for(model_file, dealer))

    def started() -> None:
        if settings.warning:
            typer.echo(f"note: {settings.warning}", err=True)
        typer.echo(f"serving {model_file} at {listen}; Ctrl-C ends", err=True)

    def log(visit: "ConnectionLogLine") -> None:
        print(json.dumps(visit.to_dict()) if as_json else visit, flush=True)

    with until_stopped() as stop:
        stage(
            model_file,
            listen=listen,
            tls=tls,
            profile=settings,
            reveal=reveal,
            dealer=dealer,
            dealer_key=dealer_key,
            limits=ServeLimits(
                clients=clients,
                queue=queue,
                max_images=max_images,
                max_batch=max_batch,
                max_images_per_day=max_images_per_day,
            ),
            state=state,
            advertise=advertise,
            metrics=None if metrics == "none" else metrics,
            insecure_first_party=insecure_first_party,
            ignore_memory=ignore_memory,
            stop=stop,
            started=started,
            log=log,
            note=lambda sentence: typer.echo(f"note: {sentence}", err=True),
        )


def _print_status(address: str, *, as_json: bool) -> None:
    from mpcvit.secure.service.metrics import read_status

    numbers = read_status(address)
    if as_json:
        print_json(numbers)
        return
    expiry_s = numbers.pop("certificate_expiry_seconds", None)
    lines = {name.replace("_", " "): f"{numbers[name]:,.0f}" for name in sorted(numbers)}
    if expiry_s is not None:
        until = datetime.fromtimestamp(expiry_s, timezone.utc)
        lines["certificate expires"] = f"{until:%Y-%m-%d %H:%M} UTC"
    print_pairs(lines)


@app.command()
def predict(
    images: Pictures,
    server: ServerAddress,
    tls: TlsFolder,
    profile: HostsProfile = None,
    batch_size: BatchSize = 1,
    dealer: DealerAddress = None,
    dealer_key: DealerKey = None,
    wait: Wait = 600.0,
    insecure_first_party: InsecureFirstParty = False,
    answers: AnswersOption = None,
    resume: Resume = False,
    out: RecordFile = None,
    as_json: AsJson = False,
    stream: Stream = False,
    strict: Strict = False,
) -> None:
    """Classify images privately with a model that another host serves.

    The server does not see the images, and this host does not see the weights. Only this
    host learns the answers. This host opens no port, and may be behind address translation.
    The profile must be the server's.

    Example: mpcvit predict photo.png --server model.example.org:9000 --tls certs/client
    """
    from mpcvit.hosts.credentials import load_credentials
    from mpcvit.hosts.peer import CLIENT, read_allowed
    from mpcvit.secure.predict import predict as stage

    settings = load_profile(profile or default_profile(dealer))
    output = Output(
        out=out, answers=answers, resume=resume, as_json=as_json, stream=stream, strict=strict
    )
    classify = partial(
        stage,
        server=server,
        tls=tls,
        profile=settings,
        batch_size=batch_size,
        dealer=dealer,
        dealer_key=dealer_key,
        wait_s=wait,
        insecure_first_party=insecure_first_party,
    )
    asked = {
        "server's certificate": sorted(read_allowed(load_credentials(tls, CLIENT).allowed)),
        "profile": settings.shared_settings(),
    }
    answer_pictures(images, asked, settings, output, classify)

"""`mpcvit doctor`."""

from pathlib import Path
from typing import Annotated

import typer

from mpcvit.cli import app
from mpcvit.cli.options import AsJson
from mpcvit.cli.show import print_json


@app.command()
def doctor(
    tls: Annotated[
        Path | None,
        typer.Option(
            "--tls", metavar="DIR", help="Folder of this host's key and certificate, to check too."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Address at which `mpcvit serve` should be able to listen."
        ),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Address of an `mpcvit serve` to reach.")
    ] = None,
    dealer: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of an `mpcvit dealer serve` to reach."),
    ] = None,
    dealer_key: Annotated[
        Path | None,
        typer.Option(
            "--dealer-key",
            metavar="FILE",
            help="The dealer's public.pem, to compare with the dealer's.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check what this machine can do, and say what would not work.

    Looks at Python, the CPU, memory, packages, SPU, disks, sockets and ports.
    The exit code is 1 if there is a problem.

    Example: mpcvit doctor --tls certs/client --server model.example.org:9000
    """
    from mpcvit.codec import encode
    from mpcvit.doctor import State, examine

    checks = []
    places = {"listen": listen, "server": server, "dealer": dealer}
    for check in examine(tls=tls, dealer_key=dealer_key, **places):
        checks.append(check)
        if not as_json:
            print(f"{check.state.value:<8} {check.name:<17} {check.found}", flush=True)
            if check.advice:
                print(f"{'':<26} {check.advice}", flush=True)
    problems = sum(check.state is State.PROBLEM for check in checks)
    if as_json:
        print_json({"problems": problems, "checks": encode(checks)})
    elif problems:
        print("1 problem" if problems == 1 else f"{problems} problems")
    if problems:
        raise typer.Exit(1)

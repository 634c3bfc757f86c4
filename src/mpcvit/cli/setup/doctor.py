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
            "--tls", metavar="DIR", help="Look at this folder's key and certificate, too."
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="See whether `mpcvit serve` could listen here."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Try to reach this `mpcvit serve`.")
    ] = None,
    dealer: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Try to reach this `mpcvit dealer serve`."),
    ] = None,
    dealer_key: Annotated[
        Path | None,
        typer.Option("--dealer-key", metavar="FILE", help="See whether this is the dealer's key."),
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

"""`mpcvit app`: the client as a page on this machine."""

import html
import tempfile
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mpcvit.artifacts.profile import default_profile, load_profile
from mpcvit.cli import app
from mpcvit.cli.hosts import (
    DealerAddress,
    DealerKey,
    HostsProfile,
    InsecureFirstParty,
    ServerAddress,
    TlsFolder,
    Wait,
)
from mpcvit.storage import write_text


@app.command("app")
def open_page(
    server: ServerAddress,
    tls: TlsFolder,
    profile: HostsProfile = None,
    dealer: DealerAddress = None,
    dealer_key: DealerKey = None,
    wait: Wait = 600.0,
    insecure_first_party: InsecureFirstParty = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")
    ] = 0,
    show_page: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in the browser.")
    ] = True,
) -> None:
    """Classify images privately on a page in the browser: drop pictures, see their classes.

    This does what `mpcvit predict` does, with the same server and certificates. The page is
    for this machine alone, and its address holds a secret. All pictures that wait when a
    session begins share it. Closing the tab stops nothing; Ctrl-C ends. No page opens
    unless the server answers.

    Example: mpcvit app --server model.example.org:9000 --tls certs/client
    """
    from mpcvit.hosts.credentials import load_credentials
    from mpcvit.hosts.peer import CLIENT
    from mpcvit.secure.learnt import what_leaves
    from mpcvit.secure.parties.roles import resolve
    from mpcvit.secure.predict import predict
    from mpcvit.secure.service.dialler import ServerLine
    from mpcvit.secure.service.requirements import find_dealer, require_for_two_hosts
    from mpcvit.web.desk import Desk
    from mpcvit.web.server import Page

    settings = load_profile(profile or default_profile(dealer))
    require_for_two_hosts(settings, [resolve(server)[0]], insecure_first_party=insecure_first_party)
    credentials = load_credentials(tls, CLIENT)
    find_dealer(settings, dealer, dealer_key, credentials)
    # who opens the page can mend this, and who drops pictures on it may not
    connect_s = settings.limits.connect_s
    with ServerLine(server, credentials, connect_s=connect_s, wait_s=wait) as line:
        line.knock()
    classify = partial(
        predict,
        server=server,
        tls=tls,
        profile=settings,
        dealer=dealer,
        dealer_key=dealer_key,
        wait_s=wait,
        insecure_first_party=insecure_first_party,
    )
    with tempfile.TemporaryDirectory(prefix="mpcvit-") as name:  # readable to this user alone
        desk = Desk(classify, Path(name))
        try:
            page = Page(desk, what_leaves(settings, server), port=port)
            typer.echo(f"open {page.address} in a browser on this machine; Ctrl-C ends", err=True)
            if show_page:
                _open(page.address, Path(name))
            page.run()
        except KeyboardInterrupt:
            typer.echo("the page is closed", err=True)
        finally:
            desk.close()


def _open(address: str, folder: Path) -> None:
    """Open an address by way of a file: other users can read a browser's command line."""
    file = folder / "open.html"
    text = f'<meta http-equiv="refresh" content="0; url={html.escape(address, quote=True)}">'
    write_text(file, f"<!doctype html>{text}\n", private=True)
    webbrowser.open(file.as_uri())

"""Two servers behind a load balancer, with one budget in a database that both share."""

import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.peer import allow, read_allowed
from mpcvit.secure.parties.roles import free_addresses
from mpcvit.secure.service.quota import open_state
from tests.hosts.service import Client, Served, make_site, wait_until
from tests.two_party.processes import is_listening

STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
POSTGRESQL = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"))), "")

pytestmark = [
    pytest.mark.long,
    pytest.mark.usefixtures("nothing_left"),
    pytest.mark.skipif(
        shutil.which("nginx") is None or not STREAM_MODULE.exists(),
        reason="nginx with its stream module is not installed",
    ),
    pytest.mark.skipif(not POSTGRESQL, reason="PostgreSQL is not installed"),
]


@pytest.fixture
def database():
    """A PostgreSQL cluster that is thrown away."""
    # root may not run it, and its own user cannot enter the test's folder
    user = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
    as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
    with tempfile.TemporaryDirectory(prefix="mpcvit-pg-", dir="/tmp") as name:
        folder = Path(name)
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        subprocess.run(
            [f"{POSTGRESQL}/initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync"],
            check=True,
            capture_output=True,
            cwd=folder,
            **as_user,
        )
        address = free_addresses(1)[0]
        port = address.rsplit(":", 1)[1]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(f"{POSTGRESQL}/postgres", "-D", data, "-k", folder, "-p", port),
                    *("-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"),
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
                **as_user,
            )
        try:
            wait_until(lambda: is_listening(address), 30)
            yield f"postgresql://postgres@{address}/postgres"
        finally:
            process.send_signal(signal.SIGINT)  # SIGTERM would wait until all have hung up
            process.wait(timeout=30)


@contextlib.contextmanager
def balanced(folder, addresses):
    """Give the address at which nginx hands connections to servers in turn."""
    folder.mkdir()
    address = free_addresses(1)[0]
    servers = "\n".join(f"    server {server};" for server in addresses)
    (folder / "nginx.conf").write_text(
        f"""\
load_module {STREAM_MODULE};
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
stream {{
  upstream servers {{
{servers}
  }}
  server {{
    listen {address};
    proxy_pass servers;
  }}
}}
"""
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["nginx", "-p", folder, "-c", folder / "nginx.conf"], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: is_listening(address) or process.poll() is not None, 30)
        assert process.poll() is None, (folder / "log").read_text()
        yield address
    finally:
        process.terminate()
        process.wait(timeout=30)


def certificates_of_two_servers(site):
    """Give each server a key of its own; the clients list both."""
    first, second = site.folder / "first", site.folder / "second"
    shutil.move(site.certs / "server", first)
    fingerprints = read_allowed(site.certs / "client" / "allowed.txt")
    make_certificates(site.certs, names=("server",))
    shutil.copytree(site.certs / "server", second)
    (known,) = fingerprints
    allow(site.certs / "client" / "allowed.txt", "first", known)
    assert len(read_allowed(site.certs / "client" / "allowed.txt")) == 2
    return first, second


@pytest.fixture
def state(database):
    with contextlib.closing(open_state(database)) as state:
        yield state


def test_a_budget_holds_across_servers(tmp_path, database, state):
    site = make_site(tmp_path)
    folders = certificates_of_two_servers(site)
    (fingerprint,) = (
        key
        for key, name in read_allowed(site.certs / "server" / "allowed.txt").items()
        if name == "client"
    )
    state.allow("client", fingerprint)
    addresses = free_addresses(2)
    common = ("--state", database, "--max-images-per-day", "5")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                Served(
                    site,
                    tmp_path / f"served{index}",
                    *common,
                    *("--advertise", address),
                    clients=1,
                    listen=address,
                    tls=folder,
                )
            )
            for index, (address, folder) in enumerate(zip(addresses, folders, strict=True))
        ]
        balancer = stack.enter_context(balanced(tmp_path / "nginx", addresses))
        both = [Client(site, balancer, images=2) for _ in servers]
        for client in both:
            client.assert_right(site)
        for server in servers:
            (visit,) = server.wait_for_visits(1)
            assert (visit["images"], visit["ended"]) == (2, "done")
            server.wait_until_idle()
        # 4 of 5 are used, 2 at each server
        for _ in servers:
            client = Client(site, balancer, images=2)
            assert "1 of 5 images are left for today, and 2 were asked for" in client.error()
        Client(site, balancer).assert_right(site)
        assert state.used(fingerprint) == 5

        # the list of clients is shared as well, and needs no signal
        for server in servers:
            server.wait_until_idle()
        state.revoke("client")
        for server in servers:
            wait_until(lambda: "hung up" in Client(site, balancer).error(), 30)
            assert server.process.poll() is None

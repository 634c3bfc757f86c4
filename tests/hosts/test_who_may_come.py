"""Only an allowed client gets in, only into its own session, and only as often as it may."""

import asyncio
import shutil
import signal

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.hosts.certificates import revoke_client
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.parties.roles import split_address
from mpcvit.secure.service.messages import (
    Answer,
    Hello,
    Join,
    Verdict,
    Way,
    encode,
    read_message,
)
from tests.hosts.service import Client, Served, line_to, make_site, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")
TERMS = agreement_of(load_profile("semi2k"))


@pytest.fixture(scope="module")
def own_site(tmp_path_factory):
    """Certificates that tests may revoke."""
    return make_site(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def served(own_site, tmp_path_factory):
    limits = ("--max-images", "3", "--max-batch", "2")
    with Served(own_site, tmp_path_factory.mktemp("served"), *limits, clients=1) as served:
        yield served


async def dial(served, folder, first):
    """Say a first message with a folder's certificate, as a client without manners would."""
    host, port = split_address(served.address)
    context = Credentials(folder=folder).dialling_context()
    reader, writer = await asyncio.open_connection(
        host, port, ssl=context, server_hostname=host, limit=1 << 16
    )
    writer.write(encode(first))
    return reader, writer


async def read_verdict(reader):
    """Read answers until one is not a place in the queue."""
    while True:
        message = await asyncio.wait_for(read_message(reader), 30)
        if isinstance(message, Answer) and message.verdict is not Verdict.WAITING:
            return message


def ask(served, folder, first):
    """Return the server's answer to a first message, or None if it hangs up."""

    async def talk():
        try:
            reader, writer = await dial(served, folder, first)
            try:
                return await read_verdict(reader)
            finally:
                writer.transport.abort()
        except (OSError, EOFError):
            return None

    return asyncio.run(talk())


def hello(images=1, batch_size=1, terms=TERMS):
    return Hello(terms=terms, images=images, batch_size=batch_size)


def test_an_allowed_client_is_welcome(own_site, served):
    """Or what follows would prove nothing."""
    answer = ask(served, own_site.certs / "client", hello())
    assert isinstance(answer, Answer)
    assert answer.verdict is Verdict.WELCOME
    served.wait_until_idle()


def test_the_dealers_certificate_is_refused(own_site, served, tmp_path):
    """Its own authority is not trusted; nor would its role be, if that were."""
    before = len(served.log())
    # the dealer's folder trusts the parties' authority, and so can check the server
    assert ask(served, own_site.certs / "dealer", hello()) is None
    wait_until(lambda: len(served.log()) > before)
    (line,) = served.log()[before:]
    assert line["certificate"] == ""
    assert line["ended"].startswith("no TLS with an accepted certificate")


def test_the_servers_own_certificate_is_refused(own_site, served):
    before = len(served.log())
    refused = ask(served, own_site.certs / "server", hello())
    assert refused.verdict is Verdict.REFUSED
    assert refused.reason == "the certificate is that of a 'server', not of a client"
    wait_until(lambda: len(served.log()) > before)
    assert "that of a 'server', not of a client" in served.log()[-1]["ended"]


def test_another_authoritys_client_is_refused(own_site, served, site, tmp_path):
    """Its names are the same, and so is its role."""
    before = len(served.log())
    folder = tmp_path / "client"
    shutil.copytree(site.certs / "client", folder)
    shutil.copy(own_site.certs / "client" / "ca.pem", folder)  # to take the server for what it is
    assert ask(served, folder, hello()) is None
    wait_until(lambda: len(served.log()) > before)
    assert served.log()[-1]["ended"].startswith("no TLS with an accepted certificate")


def test_another_clients_session_is_refused(own_site, served):
    """Who names it needs its certificate too; the session itself goes on."""

    async def talk():
        reader, writer = await dial(served, own_site.certs / "client", hello())
        answer = await read_verdict(reader)
        ends = {}
        for name in ("client", "other"):
            for way in Way:
                join = Join(session=answer.session, way=way)
                joined, end = await dial(served, own_site.certs / name, join)
                try:
                    ends[name, way] = await asyncio.wait_for(joined.read(1), 3)
                except asyncio.TimeoutError:
                    ends[name, way] = None  # it stays open
                except OSError:
                    ends[name, way] = b""
                end.transport.abort()
        assert not writer.is_closing()
        writer.transport.abort()
        return ends

    before = served.status().get("refused no such session", 0)
    ends = asyncio.run(talk())
    assert ends["other", Way.FORTH] == b""
    assert ends["other", Way.BACK] == b""
    # the naive server, which asks for the name alone, would let "other" in like this
    assert ends["client", Way.FORTH] != b""
    assert served.status()["refused no such session"] - before == 2
    served.wait_until_idle()


@pytest.mark.parametrize(
    ("images", "batch_size", "reason"),
    [
        (4, 1, "4 images in one session are more than the 3 that this server takes"),
        (3, 3, "3 images at a time are more than the 2 that this server takes"),
    ],
)
def test_too_much_is_refused_politely(own_site, served, images, batch_size, reason):
    client = Client(own_site, served.address, images=images, batch_size=batch_size)
    assert client.error() == f"the server at {served.address} refuses: {reason}"
    assert served.visits()[-1]["ended"] == f"refused: {reason}"


def test_a_client_cannot_bring_more_than_it_announced(own_site, served, monkeypatch):
    """The limits hold for what is computed, not only for what is said."""
    from mpcvit.secure import predict

    monkeypatch.setattr(predict, "Hello", lambda **said: Hello(**{**said, "images": 1}))
    before = len(served.visits())
    client = Client(own_site, served.address, images=2)
    assert client.error().endswith("asks for other images than it was admitted with")
    visit = served.wait_for_visits(before + 1)[-1]
    assert visit["images"] == 0
    served.wait_until_idle()


@pytest.mark.parametrize(
    ("profile", "reason"),
    [
        ("semi2k-dealer", "this server works without a dealer; leave out --dealer"),
        ("cheetah", "the parties differ in profile's protocol"),
    ],
)
def test_a_client_of_another_profile_learns_what_to_do(own_site, served, profile, reason):
    refused = ask(
        served, own_site.certs / "client", hello(terms=agreement_of(load_profile(profile)))
    )
    assert refused.verdict is Verdict.REFUSED
    assert refused.reason.startswith(reason)


def test_a_revoked_client_loses_its_session(own_site, served):
    """SIGHUP is enough; another client is served as before."""
    with line_to(served.address) as (address, _):
        client = Client(own_site, address, "third", images=3)
        client.wait_until_running()
        revoke_client(own_site.certs, "third")
        served.process.send_signal(signal.SIGHUP)
        assert client.error(10).endswith("the client's certificate was revoked")
    again = Client(own_site, served.address, "third")
    assert again.error().endswith("'third' is not on the list of allowed clients")
    assert "'third' is not on the list" in served.log()[-1]["ended"]
    served.wait_until_idle()
    Client(own_site, served.address, "other").assert_right(own_site)


@pytest.mark.long
def test_a_budget_survives_a_restart(site, tmp_path):
    budget = ("--max-images-per-day", "3", "--state", tmp_path / "state.sqlite")
    with Served(site, tmp_path / "one", *budget, clients=1) as served:
        Client(site, served.address, images=2).assert_right(site)
        served.wait_for_visits(1)
    # without a queue, who finds a party ready is served all the same
    with Served(site, tmp_path / "two", *budget, "--queue", "0", clients=1) as served:
        parties = served.standby()
        refused = ask(served, site.certs / "client", hello(images=2))
        assert refused is not None
        assert refused.verdict is Verdict.REFUSED
        assert refused.reason.startswith("1 of 3 images are left for today, and 2 were asked for")
        assert served.standby() == parties  # asking in vain costs no loaded model
        # a session that ends before its images are answered gives them back
        welcome = ask(served, site.certs / "client", hello())
        assert welcome is not None
        assert welcome.verdict is Verdict.WELCOME
        wait_until(lambda: served.visits()[-1]["ended"].startswith("the client vanished"))
        served.wait_until_idle()
        Client(site, served.address).assert_right(site)
        last = Client(site, served.address).error()
        assert "0 of 3 images are left for today" in last
        assert "the next day begins at 00:00 UTC" in last
        # another client's budget is its own
        served.wait_until_idle()
        welcome = ask(served, site.certs / "other", hello())
        assert welcome is not None
        assert welcome.verdict is Verdict.WELCOME

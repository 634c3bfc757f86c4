"""`mpcvit certs`, `serve` and `predict`, as a user types them."""

import json
import socket
from datetime import datetime, timezone

import pytest
from PIL import Image

from mpcvit.secure.parties.roles import free_addresses
from mpcvit.secure.service import metrics
from tests.command import invoke
from tests.models import random_pixels, small_checkpoint, small_config
from tests.two_party.conftest import ARCHITECTURE, CONFIG


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a picture and certificates."""
    folder = tmp_path_factory.mktemp("hosts")
    small_checkpoint(CONFIG, ARCHITECTURE).save(folder / "model.safetensors")
    Image.fromarray(random_pixels(small_config(), 1)[0]).save(folder / "photo.png")
    invoke("certs", "--out", folder / "certs")
    return folder


def test_certs(tmp_path):
    out = tmp_path / "certs"
    text = invoke("certs", "--out", out, "--host", "model.example.org", "--days", 30).output
    assert f"{out / 'ca'}  the authority: keep it offline" in text
    assert "the dealer's authority" not in text
    with_dealer = invoke("certs", "--out", tmp_path / "more", "--dealer-host", "localhost").output
    assert f"{tmp_path / 'more' / 'dealer-ca'}  the dealer's authority: keep it off" in with_dealer
    assert "valid until" in text
    assert "when the authority ends" not in text
    cut = "UTC, when the authority ends: 30 days instead of 365; `mpcvit certs --fresh` makes"
    assert cut in invoke("certs", "--out", out, "--for", "clinic").stdout
    assert cut in invoke("certs", "add", "hospital", "--out", out).stdout
    before = (out / "server" / "key.pem").read_bytes()
    assert "already there; --fresh" in invoke("certs", "--out", out, code=2).stderr
    document = json.loads(invoke("certs", "--out", out, "--fresh", "--json").stdout)
    assert set(document) == {"folders", "fingerprints", "expires"}
    assert document["folders"] == {"server": str(out / "server"), "client": str(out / "client")}
    assert (out / "server" / "key.pem").read_bytes() != before


def test_clients_come_and_go(tmp_path):
    out = tmp_path / "certs"
    invoke("certs", "--out", out)
    added = json.loads(invoke("certs", "add", "hospital", "--out", out, "--json").stdout)
    listed = out / "server" / "allowed.txt"
    assert f"{added['fingerprint']}  hospital" in listed.read_text()
    assert datetime.fromisoformat(added["expires"]) > datetime.now(timezone.utc)
    invoke("certs", "revoke", "hospital", "--out", out)
    invoke("certs", "add", "clinic", "--out", out)
    assert "clinic" in listed.read_text()
    assert "hospital" not in listed.read_text()  # although its folder is still there


def test_the_status_of_a_server_shows_a_date(monkeypatch):
    numbers = {"images": 1234.0, "parties_ready": 2.0, "certificate_expiry_seconds": 1826567912.0}
    monkeypatch.setattr(metrics, "read_status", lambda address: dict(numbers))
    assert invoke("serve", "--status").stdout.splitlines() == [
        "images               1,234",
        "parties ready        2",
        "certificate expires  2027-11-18 19:58 UTC",
    ]
    assert json.loads(invoke("serve", "--status", "--json").stdout) == numbers


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("certs --out x --for server,a/b", "'a/b' cannot be a client's name"),
        ("certs --out x --host a/b", "neither a host name nor an address"),
        ("certs --out /proc/x", "cannot write /proc/x"),
        ("certs add nurse --out x", "there is no authority in x"),
        ("certs revoke nurse --out CERTS", "lists no 'nurse'; it lists client"),
        ("serve MODEL", "name a model, --listen and --tls"),
        ("serve --status --metrics FREE", "no server shows its numbers"),
        ("serve MODEL --listen 9000 --tls SERVER", "'9000' is not an address"),
        ("serve MODEL --listen OUTSIDE --tls SERVER", "cannot listen on"),
        ("serve MODEL --listen FREE --tls x", "there is no"),
        ("serve MODEL --listen FREE --tls CLIENT", "that of a 'client', not of a 'server'"),
        ("serve MODEL --listen FREE --tls SERVER --profile aby3", "needs 3 parties"),
        ("serve MODEL --listen FREE --tls SERVER --profile semi2k-wan", "emulates a network"),
        ("serve MODEL --listen OUTSIDE --tls SERVER --profile semi2k", "--insecure-first-party"),
        ("serve none.safetensors --listen FREE --tls SERVER", "there is no file"),
        ("serve MODEL --listen TAKEN --tls SERVER --metrics none", "cannot listen on"),
        ("serve MODEL --listen FREE --tls SERVER --metrics OUTSIDE", "on this machine alone"),
        ("predict no.png --server FREE --tls CLIENT", "no.png"),
        ("predict PHOTO --server FREE --tls CLIENT", "nobody listens at"),
        ("predict PHOTO --server https://localhost:9 --tls CLIENT", "is not an address; write"),
        ("predict PHOTO --server FREE --tls SERVER", "that of a 'server', not of a 'client'"),
        ("predict PHOTO --server OUTSIDE --tls CLIENT --profile semi2k", "--insecure-first-party"),
        # no page opens; if one did, its port would be taken
        ("app --server FREE --tls CLIENT --no-open --port PORT", "nobody listens at"),
        ("app --server FREE --tls SERVER --no-open --port PORT", "not of a 'client'"),
    ],
)
def test_mistakes_get_one_sentence_and_code_2(arguments, message, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = {
            "MODEL": str(folder / "model.safetensors"),
            "PHOTO": str(folder / "photo.png"),
            "OUTSIDE": "198.51.100.1:9000",  # an address for examples, which nobody has
            "FREE": free_addresses(1)[0],
            "TAKEN": "{}:{}".format(*taken.getsockname()),
            "PORT": str(taken.getsockname()[1]),
            "SERVER": str(folder / "certs" / "server"),
            "CLIENT": str(folder / "certs" / "client"),
            "CERTS": str(folder / "certs"),
        }
        result = invoke(*(words.get(argument, argument) for argument in arguments.split()), code=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())

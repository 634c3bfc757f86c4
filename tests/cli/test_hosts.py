"""`mpcvit certs`, `serve` and `predict`, as a user types them."""

import json
import socket

import pytest
from PIL import Image

from mpcvit.runtime.roles import free_addresses
from tests.cli.test_commands import invoke
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
    before = (out / "server" / "key.pem").read_bytes()
    assert "already there; --fresh" in invoke("certs", "--out", out, code=2).stderr
    document = json.loads(invoke("certs", "--out", out, "--fresh", "--json").stdout)
    assert set(document) == {"folders", "fingerprints", "expires"}
    assert document["folders"] == {"server": str(out / "server"), "client": str(out / "client")}
    assert (out / "server" / "key.pem").read_bytes() != before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("certs --out x --for server,nurse", "there is no party 'nurse'"),
        ("certs --out x --host a/b", "neither a host name nor an address"),
        ("certs --out /proc/x", "cannot write /proc/x"),
        ("serve MODEL --listen 9000", "'9000' is not an address"),
        ("serve MODEL --listen OUTSIDE", "reaches beyond this machine"),
        ("serve MODEL --listen 0.0.0.0:9000", "reaches beyond this machine"),
        ("serve MODEL --listen OUTSIDE --tls SERVER", "cannot listen on"),
        ("serve MODEL --listen FREE --tls x", "there is no"),
        ("serve MODEL --listen FREE --tls CLIENT", "that of 'client', not of 'server'"),
        ("serve MODEL --listen FREE --profile aby3", "needs 3 parties"),
        ("serve MODEL --listen FREE --profile semi2k-wan", "emulates a network"),
        ("serve none.safetensors --listen FREE", "there is no file"),
        ("serve MODEL --listen TAKEN", "cannot listen on"),
        ("predict PHOTO --server OUTSIDE --listen FREE", "reaches beyond this machine"),
        ("predict PHOTO --server FREE --listen OUTSIDE", "reaches beyond this machine"),
        ("predict PHOTO --server FREE --listen TAKEN", "cannot listen on"),
        ("predict no.png --server FREE --listen FREE", "no.png"),
        ("predict PHOTO --server OUTSIDE --listen FREE --tls CLIENT", "server cannot dial"),
        ("predict PHOTO --server FREE --listen FREE --tls CLIENT --allow-plaintext", "exclude"),
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
            "SERVER": str(folder / "certs" / "server"),
            "CLIENT": str(folder / "certs" / "client"),
        }
        result = invoke(*(words.get(argument, argument) for argument in arguments.split()), code=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_down(folder, tmp_path):
    (tmp_path / "quick.toml").write_text('protocol = "CHEETAH"\nlimits.connect_s = 0.5\n')
    server, listen = free_addresses(2)
    result = invoke(
        *("predict", folder / "photo.png", "--server", server, "--listen", listen),
        *("--tls", folder / "certs" / "client", "--profile", tmp_path / "quick.toml"),
        code=2,
    )
    assert f"nobody answers at {server}" in result.stderr

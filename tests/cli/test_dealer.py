"""`mpcvit dealer`, and `serve` and `predict` with one, as users type them."""

import json
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from PIL import Image

import mpcvit
from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import DataSource, load_config
from mpcvit.bench.networks import random_checkpoint, random_images
from mpcvit.cli.running import load_images
from mpcvit.data import sample_evenly
from mpcvit.dealer.keys import load_private_key, load_public_key
from mpcvit.dealer.party.client import DealerClient
from mpcvit.errors import UserError
from mpcvit.hosts.credentials import Credentials
from mpcvit.kinds import table
from mpcvit.lowering.program import SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.progress import quiet
from mpcvit.secure.parties.roles import free_addresses
from tests.command import invoke
from tests.configs import TINY
from tests.unit.dealer.jobs import SCRIPT, expected, fetch, make_job, new_seeds
from tests.unit.dealer.saboteur import Saboteur


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, plain and lowered, a picture, a dealer's key and everyone's certificates."""
    folder = tmp_path_factory.mktemp("three-hosts")
    model = replace(load_config(TINY).model, depth=1)
    kind = {"depth": model.depth, "heads": model.heads, "mlp": MlpForm.FUSED}
    checkpoint = random_checkpoint(model, Architecture.uniform(table.SCALING, **kind))
    checkpoint = replace(checkpoint, data=replace(checkpoint.data, source=DataSource.DIGITS))
    checkpoint.save(folder / "model.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPCVIT_CACHE", str(folder / "cache"))  # no party will look there
        text = invoke(
            *("lower", folder / "model.safetensors", "--out", folder / "program"),
            *("--profile", "semi2k-dealer", "--images", 64, "--error-budget", 1),
        ).output
    assert "a batch, script" in text
    assert "once a session, script" in text
    Image.fromarray(random_images(model)[0, ..., 0]).save(folder / "photo.png")
    text = invoke("dealer", "keys", "--out", folder / "dealer").output
    assert load_public_key(folder / "dealer" / "public.pem").fingerprint in text
    invoke("certs", "--out", folder / "certs", "--dealer-host", "127.0.0.1")
    return folder


def test_python_lowers_as_the_command_does(folder):
    program = SecureProgram.load(folder / "program")
    checkpoint = Checkpoint.load(folder / "model.safetensors")
    split = load_images(checkpoint, None, "train", quiet)
    images = sample_evenly(split, 64)
    made = mpcvit.lower(checkpoint, images, "semi2k-dealer", error_budget=1)
    assert len(made.public.scripts) == 3  # for few images; for many, and their set-up
    assert made.public.scripts == program.public.scripts
    assert made.digest() == program.digest()
    assert made.calibration == program.calibration
    assert "exchanges" in made.calibration.guard_cost
    with pytest.raises(UserError, match="a guard is one of 'on', 'off', 'auto', not 'perhaps'"):
        mpcvit.lower(checkpoint, images, "semi2k-dealer", guard="perhaps")


@pytest.fixture
def start(folder):
    """Starts commands; whatever still runs is ended with the test."""
    started = []

    def begin(*arguments, ready):
        process = subprocess.Popen(
            [sys.executable, "-m", "mpcvit", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stderr is not None
        while line := process.stderr.readline():
            if line.startswith(ready):
                return process
        raise AssertionError(f"{arguments[0]} did not start")

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def start_dealer(start, folder, *more):
    (address,) = free_addresses(1)
    process = start(
        *("dealer", "serve", "--listen", address, "--keys", folder / "dealer"),
        *("--tls", folder / "certs" / "dealer", "--json", *more),
        ready="dealing at",
    )
    return process, address


def test_processes_share_the_work(start, folder, tmp_path):
    process, address = start_dealer(
        start, folder, "--workers", "2", "--records", tmp_path / "records.sqlite"
    )
    key = load_private_key(folder / "dealer")
    clients = {
        party: DealerClient(
            address=address,
            fingerprint=key.public.fingerprint,
            context=Credentials(folder=folder / "certs" / party).dealer_context(),
            patience_s=10.0,
        )
        for party in ("server", "client")
    }
    for _ in range(4):
        seeds = new_seeds()
        job = make_job(key, seeds)
        for client in clients.values():
            client.authorise(job)
        assert fetch(clients["server"], job) == expected(seeds)
    records = ("--keys", folder / "dealer", "--records", tmp_path / "records.sqlite")
    totals = json.loads(invoke("dealer", "metrics", *records, "--json").stdout)
    assert (totals["jobs"], totals["sent_bytes"]) == (4, 4 * SCRIPT.answer_bytes)
    assert totals["seconds"] > 0
    assert "served so far: 4 jobs, 4 inferences" in invoke("dealer", "metrics", *records).output
    process.send_signal(signal.SIGTERM)
    lines, end = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "4 jobs, 4 inferences" in end
    served = [json.loads(line) for line in lines.splitlines()]
    assert {line["what"] for line in served} == {"authorise", "inference 0"}
    assert {line["ended"] for line in served} == {"done"}


def serve_and_predict(start, folder, model, dealer, *more):
    """A server with a dealer, and what asks it for a prediction."""
    (server,) = free_addresses(1)
    settings = ("--dealer", dealer, "--dealer-key", folder / "dealer" / "public.pem", *more)
    process = start(
        *("serve", folder / model, "--listen", server, "--json", "--clients", 1),
        *("--metrics", "none", "--tls", folder / "certs" / "server", *settings),
        ready="serving",
    )

    def ask(code=0):
        return invoke(
            *("predict", folder / "photo.png", "--server", server, "--json"),
            *("--tls", folder / "certs" / "client", *settings),
            code=code,
        )

    return process, ask


def test_three_hosts(start, folder, cache_folder):
    """Nobody names a profile, and nobody rehearses: the program says how it is run."""
    rehearsed = set(cache_folder.glob("scripts/*"))
    _, dealer = start_dealer(start, folder)
    _, ask = serve_and_predict(start, folder, "program", dealer)
    document = json.loads(ask().stdout)
    record, program = document["record"], SecureProgram.load(folder / "program")
    assert record["profile"]["dealer"] == "third-party"
    assert record["profile"]["ring_bits"] == program.engine.ring_bits == 128
    script, *_ = program.public.scripts.values()  # for few images
    assert record["offline"]["received_bytes"] == script.answer_bytes
    assert set(cache_folder.glob("scripts/*")) == rehearsed
    (found,) = document["predictions"]
    (expected,) = program(program.preprocess([folder / "photo.png"]))
    assert found["class"] == program.classes[expected.argmax()]
    assert "logits" not in found


@pytest.mark.long
def test_a_dealer_that_fails_in_the_middle_of_a_session(start, folder, tmp_path):
    """Both hosts say so within the limit; once it is back, the same server serves again."""
    profile = tmp_path / "quick.toml"
    profile.write_text('protocol = "SEMI2K"\nlimits.connect_s = 10.0\n')
    _, dealer = start_dealer(start, folder)
    between = Saboteur(dealer)
    server, ask = serve_and_predict(
        *(start, folder, "model.safetensors", between.address, "--profile", profile)
    )
    for stalls, found in ((True, "stalls"), (False, "hung up|breaks off")):
        # the client finds the dealer; from then on neither party gets an answer
        between.allowances, between.stalls = [1 << 40, *[0] * 1000], stalls
        started = time.monotonic()
        sentence = ask(code=2).stderr
        assert time.monotonic() - started < 60
        visit = json.loads(server.stdout.readline())
        for said in (sentence, visit["ended"]):
            assert re.search(f"the dealer at {between.address} ({found})", said)
        assert visit["images"] == 0
    between.allowances = []
    assert json.loads(ask().stdout)["predictions"]
    assert json.loads(server.stdout.readline())["ended"] == "done"
    between.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("dealer keys --out FOLDER", "is already there"),
        ("dealer serve --listen FREE --keys nowhere --tls DEALER", "cannot read the dealer's key"),
        (
            "dealer serve --listen FREE --keys KEYS --tls SERVER",
            "that of a 'server', not of a 'dealer'",
        ),
        ("dealer metrics --keys KEYS --records PHOTO", "cannot keep its records"),
        ("dealer metrics --keys KEYS --records nowhere", "there are no records in nowhere"),
        ("dealer serve --listen 9100 --keys KEYS --tls DEALER", "'9100' is not an address"),
        ("serve MODEL --listen FREE --tls SERVER --profile semi2k-dealer", "needs --dealer"),
        (
            "serve MODEL --listen FREE --tls SERVER --profile cheetah --dealer FREE",
            "the profile has no dealer",
        ),
        (
            "predict PHOTO --server FREE --tls CLIENT --dealer FREE --dealer-key PHOTO",
            "is not a dealer's public key",
        ),
    ],
)
def test_mistakes_get_one_sentence_and_code_2(arguments, message, folder):
    words = {
        "FOLDER": folder,
        "MODEL": folder / "model.safetensors",
        "PHOTO": folder / "photo.png",
        "KEYS": folder / "dealer",
        "PUBLIC": folder / "dealer" / "public.pem",
        **{party.upper(): folder / "certs" / party for party in ("server", "client", "dealer")},
    }
    found = [
        free_addresses(1)[0] if word == "FREE" else words.get(word, word)
        for word in arguments.split()
    ]
    result = invoke(*found, code=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_a_dealer_that_is_down_is_noticed_at_the_start(folder, tmp_path):
    profile = tmp_path / "quick.toml"
    profile.write_text('protocol = "SEMI2K"\ndealer = "third-party"\nlimits.connect_s = 0.5\n')
    dealer, listen = free_addresses(2)
    result = invoke(
        *("serve", folder / "model.safetensors", "--listen", listen, "--profile", profile),
        *("--tls", folder / "certs" / "server", "--dealer", dealer),
        *("--dealer-key", folder / "dealer" / "public.pem"),
        code=2,
    )
    assert f"nobody listens at the dealer's address {dealer}" in result.stderr

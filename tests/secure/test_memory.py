"""A model that is too large for memory is refused with numbers, before anything starts."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import mpcvit
from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.codec import encode
from mpcvit.cost.estimate import forecast
from mpcvit.errors import UserError
from mpcvit.kinds.table import SOFTMAX
from mpcvit.secure import memory as memory_module
from mpcvit.secure.memory import read_network, require_memory
from tests.command import invoke
from tests.configs import TINY
from tests.docs.pages import ROOT

SHIPPED = Path(mpcvit.__file__).parent / "demo" / "shipped" / "mpcvit"


@pytest.fixture
def memory(monkeypatch):
    def give(gigabytes):
        monkeypatch.setattr(memory_module, "available_bytes", lambda: int(gigabytes * 1e9))

    return give


@pytest.fixture(scope="module")
def giant(tmp_path_factory):
    """What a checkpoint of ViT-Base says of itself, without its weights."""
    model = load_config(Path("vit-base")).model
    uniform = Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads)
    held = {"model": json.dumps(encode(model)), "architecture": uniform.to_json()}
    folder = tmp_path_factory.mktemp("giant")
    save_file({"x": np.zeros(1, np.float32)}, folder / "giant.safetensors", held)
    Image.fromarray(np.zeros((224, 224, 3), np.uint8)).save(folder / "photo.png")
    return folder


def test_run_and_serve_refuse_with_numbers(giant, memory, tmp_path):
    memory(16)
    command = ("run", giant / "giant.safetensors", giant / "photo.png", "--profile")
    refused = invoke(*command, "semi2k-dealer-wan", code=2).stderr
    assert "needs about 29.0 GB of memory here, 2 times 14.5 GB, and 16.0 GB are left" in refused
    assert "would send 10.55 GB and take about 487 s" in refused
    assert "lower the model (mpcvit lower)" in refused
    # asked for by name, it starts, and finds that the file has no weights
    tried = invoke(*command, "semi2k-dealer-wan", "--ignore-memory", code=2).stderr
    assert "not a checkpoint of this version" in tried
    invoke("certs", "--out", tmp_path / "certs")
    serve = ("serve", giant / "giant.safetensors", "--listen", "127.0.0.1:9", "--tls")
    dealt = ("--profile", "semi2k-dealer", "--clients", 3)
    refused = invoke(*serve, tmp_path / "certs" / "server", *dealt, code=2).stderr
    assert "needs about 43.5 GB of memory here, 3 times 14.5 GB" in refused


def test_what_fits_or_is_not_known_is_not_refused(giant, memory):
    dealer = load_profile("semi2k-dealer")
    memory(29)
    require_memory(giant / "giant.safetensors", dealer, parties=2)
    memory(0)
    require_memory(giant / "giant.safetensors", load_profile("cheetah"), parties=2)
    require_memory(giant / "giant.safetensors", load_profile("aby3"), parties=3)
    require_memory(giant / "photo.png", dealer, parties=2)  # its party says what is wrong
    require_memory(giant / "nothing", dealer, parties=2)
    with pytest.raises(UserError, match=r"0\.0 GB are left.*--ignore-memory"):
        require_memory(SHIPPED / "program", dealer, parties=1)


def test_images_at_a_time_count_as_far_as_there_are_any(memory):
    model = load_config(TINY).model
    checkpoint = random_checkpoint(model, paper_networks(model)["scaling"])
    memory(0.7)
    dealer = load_profile("semi2k-dealer")
    require_memory(checkpoint, dealer, parties=2, batch_size=8)
    with pytest.raises(UserError, match="take fewer images"):
        require_memory(checkpoint, dealer, parties=2, batch_size=8_000)
    result = mpcvit.run(checkpoint, random_images(model), "semi2k", batch_size=8_000, simulate=True)
    assert len(result.predictions) == 1


def test_a_shape_is_read_without_jax():
    code = f"""
import sys
from mpcvit.secure.memory import read_network
model, architecture, lowered = read_network({str(SHIPPED / "program")!r})
assert lowered and model.depth == len(architecture.layers)
assert not read_network({str(SHIPPED / "model.safetensors")!r})[2]
sys.exit("jax" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def _counted():
    for name in ("peers", "peers-deit-tiny"):
        file = ROOT / "results" / "secure" / f"{name}.csv"
        for row in csv.DictReader(file.read_text().splitlines()) if file.exists() else ():
            if not row["engine"].startswith("CrypTen"):
                yield row


@pytest.mark.parametrize("row", list(_counted()), ids=lambda row: " ".join(list(row.values())[:3]))
def test_forecasts_are_near_what_was_counted(row):
    model = load_config(Path(row["config"])).model
    architecture = paper_networks(model)[row["network"]]
    lowered = "lowered" in row["engine"]
    found = forecast(model, architecture, lowered=lowered)
    near = 0.15 if lowered else 0.002  # two exchanges carry image and logits
    assert found.exchanges == pytest.approx(float(row["exchanges"]), rel=near)
    assert found.sent_bytes / 1e6 == pytest.approx(float(row["sent_mb"]), rel=near)


def test_the_command_forecasts_networks_and_models():
    rows = json.loads(invoke("estimate", "vit-base", "--json").stdout)
    by_form = {row["form"]: row for row in rows if row["attention"] == "softmax"}
    assert by_form["lowered"]["memory_gb"] < by_form["plain"]["memory_gb"] / 2
    assert by_form["plain"]["seconds"] == pytest.approx(
        by_form["plain"]["modelled_s"] + by_form["plain"]["compute_s"]
    )
    (program,) = json.loads(invoke("estimate", SHIPPED / "program", "--json").stdout)
    assert (program["attention"], program["form"]) == ("program", "lowered")
    both = json.loads(invoke("estimate", SHIPPED / "model.safetensors", "--json").stdout)
    assert [row["form"] for row in both] == ["plain", "lowered"]
    refused = invoke("estimate", SHIPPED / "program", "--out", "latency.json", code=2).stderr
    assert "go with a config" in refused
    larger = json.loads(invoke("estimate", SHIPPED / "program", "--batch-size", 4, "--json").stdout)
    assert larger[0]["sent_mb"] > 3 * program["sent_mb"]
    assert larger[0]["exchanges"] == program["exchanges"]
    assert read_network(SHIPPED / "log.jsonl") is None


def test_the_command_says_what_has_no_forecast():
    said = invoke("estimate", SHIPPED / "program").stdout
    assert "SEMI2K with a dealer, without set-up" in said
    assert "no forecast for CHEETAH or ABY3, whose runs are not checked for memory" in said
    (row,) = json.loads(invoke("estimate", SHIPPED / "program", "--json").stdout)
    assert row["protocol"] == "SEMI2K"
    for model in ("program", "model.safetensors"):
        refused = invoke("estimate", SHIPPED.parent / "found" / model, code=2).stderr
        assert "the forecast takes no" in refused


@pytest.mark.long
def test_forecasts_stand_beside_runs(monkeypatch, tmp_path):
    from mpcvit.bench import sessions as bench

    run = bench.run
    monkeypatch.setattr(bench, "run", lambda *words, **options: run(*words, simulate=True))
    out = tmp_path / "forecast.csv"
    command = ("bench", "forecast", TINY, "--networks", "scaling", "--forms", "lowered")
    assert "memory, forecast / found" in invoke(*command, "--out", out).stdout
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["forecast_exchanges"]) == pytest.approx(float(row["exchanges"]), rel=0.3)
    assert row["ring_bits"] == "128"  # the program's, and not the profile's
    found = max(float(row["model_owner_mb"]), float(row["data_owner_mb"]))
    expected = float(row["forecast_memory_mb"])
    assert float(row["memory_ratio"]) == pytest.approx(expected / found, rel=0.01)
    refused = invoke("bench", "forecast", TINY, "--profile", "cheetah", code=2).stderr
    assert "there is no forecast for CHEETAH" in refused

"""`estimate`, `search`, `derive`, `compare` and `experiment`, as a user types them."""

import json
from dataclasses import replace

import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.choices import ActivationGranularity
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.cost.estimate import estimate
from mpcvit.experiments.catalogue import EXPERIMENTS
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint
from tests.command import invoke
from tests.configs import TINY
from tests.searches import ALPHA, MODEL, make_full_result, make_result, random_costs

K = table


@pytest.fixture
def search_file(tmp_path):
    make_result(ALPHA).save(tmp_path / "search.json")
    return tmp_path / "search.json"


def test_estimate_writes_a_table_of_its_network(tmp_path):
    out = tmp_path / "latency.json"
    rows = json.loads(invoke("estimate", TINY, "--out", out, "--json").stdout)
    assert {row["attention"] for row in rows} == set(K.KINDS)
    invoke("estimate", TINY, "--out", out, "--round-trip-ms", 0, "--bandwidth-mb-per-s", 1)
    table = LatencyTable.load(out)
    architecture = Architecture.uniform(K.SOFTMAX, depth=2, heads=2)
    cost = table.price(architecture)
    assert table.seconds(cost) == pytest.approx(cost.sent_bytes / 1e6)
    refused = invoke("estimate", TINY, "--out", out, "--round-trip-ms", -1, code=2).stderr
    assert "must not be negative" in refused


def test_search_then_derive_and_its_files(tmp_path):
    folder = tmp_path / "search"
    settings = ("--set", "search.activation=layer", "--set", "search.epochs=1")
    output = invoke("search", TINY, "--out", folder, *settings).output
    assert "modelled from counts per operation" in output
    names = {entry.name for entry in folder.iterdir()}
    assert {"search.json", "search.png", "log.jsonl", "state.safetensors"} <= names
    assert "already holds a run" in invoke("search", TINY, "--out", folder, code=2).stderr
    out = tmp_path / "arch.json"
    output = invoke(
        *("derive", folder, "--ratio", 0.5, "--gelu-threshold", 1, "--mlp-form", "fused"),
        *("--out", out),
    ).output
    assert "kept     2 of 4" in output
    assert "left out with an equal alpha" in output or "ties" not in output
    architecture = Architecture.load(out)
    assert architecture.count(K.RELU_SOFTMAX) == 2
    assert {layer.mlp.value for layer in architecture.layers} == {"fused"}


@pytest.mark.long
def test_a_search_of_every_choice_then_a_network_within_a_budget(tmp_path):
    model = load_config(TINY).model
    random_costs(model).save(tmp_path / "latency.json")
    folder, out = tmp_path / "search", tmp_path / "arch.json"
    choices = ("--set", 'search.choices=["attention","norm","activation","tokens"]')
    settings = (*choices, "--set", "search.token_counts=[3]", "--set", "search.epochs=1")
    settings += ("--set", "search.latency_weight=0.05")
    refused = invoke("search", TINY, "--out", folder, *settings, code=2).stderr
    assert "prices attention alone" in refused
    latency = ("--latency", tmp_path / "latency.json")
    invoke("search", TINY, "--out", folder, *settings, *latency)
    row = json.loads((folder / "log.jsonl").read_text().splitlines()[-1])
    assert [len(row[name]) for name in ("alpha", "beta", "norms", "tokens")] == [2, 2, 3, 2]
    assert any(value < 1 for own in row["norms"] for value in own)  # they have moved
    assert (folder / "search.png").exists()
    arguments = ("derive", folder, "--out", out, "--json")
    found = json.loads(invoke(*arguments, "--latency-budget", "0.7s").stdout)
    assert found["seconds"] <= 0.7
    model_folder = tmp_path / "model"
    invoke("train", TINY, "--arch", out, "--set", "train.epochs=1", "--out", model_folder)
    assert Checkpoint.load(model_folder / "model.safetensors").architecture == Architecture.load(
        out
    )


def test_derive_over_every_choice(tmp_path):
    make_full_result(replace(MODEL, depth=2, heads=2)).save(tmp_path / "search.json")
    out = tmp_path / "arch.json"
    output = invoke("derive", tmp_path, "--latency-budget", "9s", "--out", out).output
    assert "layer  heads  mlp  norm1       norm2       activation  tokens" in output
    assert "of all choices" in output
    refused = invoke("derive", tmp_path, "--latency-budget", "1ms", "--out", out, code=2).stderr
    assert "no network fits 0.001 s: the cheapest, scaling in every head" in refused
    assert (
        "a ratio counts heads alone"
        in invoke("derive", tmp_path, "--ratio", 0.5, "--out", out, code=2).stderr
    )
    estimate(replace(MODEL, depth=2, heads=2)).save(tmp_path / "plain.json")
    arguments = ("--latency-budget", "9s", "--latency", tmp_path / "plain.json", "--out", out)
    assert "prices attention alone" in invoke("derive", tmp_path, *arguments, code=2).stderr


def test_a_search_says_how_rare_layer_norms_may_be(tmp_path):
    result = make_full_result(replace(MODEL, depth=3, heads=2))
    result = replace(result, norms=((0.0, 0.0),) * 3 + ((0.0,),))
    config = {**result.provenance.config, "derive": {"layer_norm_every": 3}}
    provenance = replace(result.provenance, config=config)
    replace(result, provenance=provenance).save(tmp_path / "search.json")
    out = tmp_path / "arch.json"

    def kept(*options):
        invoke("derive", tmp_path, "--latency-budget", "99s", "--out", out, *options)
        return sum(layer.form.norm2.value == "layer" for layer in Architecture.load(out).layers)

    assert kept() == 1
    assert kept("--layer-norm-every", 1) == 3


def test_derive_by_budget_in_any_unit(search_file, tmp_path):
    out = tmp_path / "arch.json"
    most = json.loads(invoke("derive", search_file, "--ratio", 1, "--out", out, "--json").stdout)
    budget = f"{1000 * most['seconds'] + 0.001:.4f}ms"  # nanoseconds are rounded up, layer by layer
    found = invoke("derive", search_file, "--latency-budget", budget, "--out", out, "--json")
    assert json.loads(found.stdout)["kept"] == 9
    assert Architecture.load(out) == Architecture.uniform(K.RELU_SOFTMAX, depth=3, heads=3)


def test_derive_tells_ties(tmp_path):
    make_result(((1.0,) * 3,) * 3).save(tmp_path / "search.json")
    output = invoke("derive", tmp_path, "--ratio", 7 / 9, "--out", tmp_path / "a.json").output
    assert "left out with an equal alpha: layer 2 head 1 row 0, layer 2 head 2 row 0" in output


def test_derive_prices_by_another_table(search_file, tmp_path):
    table = make_result(ALPHA).latency
    faster = replace(table.network, round_trip_ms=1.0)
    replace(table, network=faster).save(tmp_path / "lan.json")
    out = tmp_path / "arch.json"
    arguments = ("derive", search_file, "--ratio", 0.5, "--out", out, "--json")
    wan, lan = (
        json.loads(invoke(*arguments, *more).stdout)["seconds"]
        for more in ((), ("--latency", tmp_path / "lan.json"))
    )
    assert lan < wan / 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ratio", 1.5), "a ratio must lie in [0, 1], not 1.5"),
        (("--ratio", -0.1), "a ratio must lie in [0, 1], not -0.1"),
        (("--latency-budget", "1s"), "the cheapest, scaling in every head, takes"),
        (("--latency-budget", "soon"), "must be seconds such as 12s or 500ms, not 'soon'"),
        ((), "give either --relu-softmax-ratio or --latency-budget"),
        (("--ratio", 0.5, "--latency-budget", "9s"), "give either"),
        (("--latency-budget", "99s", "--per-layer"), "--per-layer goes with"),
        (("--ratio", 0.5, "--gelu-threshold", 0.5), "did not weigh GeLU"),
        (("--ratio", 0.5, "--latency", "none.json"), "there is no latency file none.json"),
    ],
)
def test_derive_refuses_in_one_sentence(search_file, tmp_path, arguments, message):
    out = tmp_path / "arch.json"
    result = invoke("derive", search_file, "--out", out, *arguments, code=2)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not out.exists()


def test_foreign_files_are_refused_in_one_sentence(search_file, tmp_path):
    arch, table = tmp_path / "arch.json", tmp_path / "latency.json"
    invoke("derive", search_file, "--ratio", 0.5, "--out", arch)
    assert (
        "has 3 layers, but the model has 2" in invoke("train", TINY, "--arch", arch, code=2).stderr
    )
    result = make_result(ALPHA, ((0.5,),) * 3, activation=ActivationGranularity.LAYER)
    result.latency.save(table)
    refused = invoke("search", TINY, "--latency", table, "--out", tmp_path / "s", code=2).stderr
    assert "made for 3 layers, but the model has 2" in refused
    refused = invoke("search", TINY, "--latency", arch, "--out", tmp_path / "s", code=2).stderr
    assert "is not a latency file" in refused
    refused = invoke("derive", arch, "--ratio", 0.5, "--out", tmp_path / "b.json", code=2).stderr
    assert "is not a search" in refused
    refused = invoke("derive", tmp_path / "s", "--ratio", 0.5, "--out", arch, code=2).stderr
    assert "there is no search" in refused


def test_compare_refuses_what_holds_nothing(tmp_path):
    assert "there is no run or model" in invoke("compare", tmp_path / "x", code=2).stderr
    (tmp_path / "empty").mkdir()
    refused = invoke("compare", tmp_path / "empty", code=2).stderr
    assert "none of these places holds a trained network" in refused


def test_a_list_counts_the_rows_and_seeds_that_are_there(tmp_path):
    from mpcvit.artifacts.provenance import write_rows

    runs = [("softmax", 0, 6), ("softmax", 1, 6), ("scaling", 0, 6), ("of another time", 0, 6)]
    write_rows(
        tmp_path / "tiny" / "trade-off-runs.csv",
        [{"network": name, "seed": seed, "epochs": epochs} for name, seed, epochs in runs],
    )
    write_rows(
        tmp_path / "deep" / "latency-weight.csv", [{"search": "search", "seed": 2, "epochs": 3}]
    )
    output = invoke("experiment", "--list", "--out", tmp_path).output
    assert "there: 2 of 27 rows, 1 to 2 seeds, 6 epochs (tiny)" in output
    assert "there: 1 of 5 rows, 1 seed, 3 epochs (deep)" in output
    assert output.count("there: no rows; not run") == len(EXPERIMENTS) - 2
    listed = json.loads(invoke("experiment", "--list", "--out", tmp_path, "--json").stdout)
    (held,) = next(one["held"] for one in listed if one["name"] == "trade-off")
    assert held["seeds"] == {"softmax": 2, "scaling": 1}
    (tmp_path / "tiny" / "trade-off-runs.csv").write_text("network,seed\nsoftmax,0\n")
    refused = invoke("experiment", "--list", "--out", tmp_path, code=2).stderr
    assert "is not a table of runs: it needs network, seed, epochs" in refused


def test_experiments_are_listed_with_what_they_mirror():
    listed = json.loads(invoke("experiment", "--list", "--json").stdout)
    assert [entry["name"] for entry in listed] == [one.name for one in EXPERIMENTS]
    output = invoke("experiment", "--list").output
    assert all(one.mirrors in output for one in EXPERIMENTS)


def test_an_experiment_measures_prices_unless_a_file_has_them(tmp_path, monkeypatch):
    def measure(model, profile, kinds, progress):
        network = profile.network
        return replace(estimate(model, network), source=f"{network.round_trip_ms:g} ms")

    stores = []
    monkeypatch.setattr("mpcvit.pipeline.prices.measure_latency", measure)
    monkeypatch.setattr(
        "mpcvit.experiments.run.run_experiment",
        lambda experiment, store, *_, **__: (stores.append(store), ((), {}))[1],
    )
    model, file = load_config(TINY).model, tmp_path / "latency.json"
    replace(estimate(model), source="of a file").save(file)
    for options in ((), ("--latency", file)):
        invoke("experiment", "trade-off", TINY, "--runs", tmp_path / "runs", *options, code=2)
    assert [store.price(model).source for store in stores] == ["40 ms", "of a file"]
    (kept,) = (tmp_path / "runs" / "digits-tiny" / "prices").glob("*.json")
    assert LatencyTable.load(kept).source == "40 ms"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give an experiment and a configuration, or --list"),
        (("trade-of", TINY), "did you mean 'trade-off'"),
        (("trade-off", TINY, "--rows", "softmx"), "no row 'softmx'"),
        (("trade-off", TINY, "--seeds", "one"), "--seeds must be whole numbers"),
    ],
)
def test_experiment_refuses_in_one_sentence(arguments, message):
    assert message in invoke("experiment", *arguments, code=2).stderr

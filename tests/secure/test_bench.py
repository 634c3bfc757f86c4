"""Probes, benches and the measured latency file, at tiny shapes in the simulator."""

import csv
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import Activation
from mpcvit.artifacts.profile import load_profile
from mpcvit.bench import sessions
from mpcvit.bench.latency import measure_latency
from mpcvit.bench.lowered import read_reference
from mpcvit.bench.networks import (
    mixed,
    networks_as_written,
    paper_networks,
    random_checkpoint,
    random_images,
)
from mpcvit.bench.paper_tables import bench_breakdown, bench_network, bench_precision, count_stages
from mpcvit.cli.bench.tables import EXAMPLES
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.progress import quiet
from mpcvit.secure.components import attention_core, mlp
from mpcvit.secure.probe import measure_function
from mpcvit.secure.run import run
from mpcvit.storage import CACHE_VARIABLE
from tests.command import invoke
from tests.models import small_config

K = table
SEMI2K = load_profile("semi2k-wan")
BOTH = "semi2k-wan,semi2k-dealer-wan"


def test_counts_of_single_operations():
    """As SPU's own documentation of its kernels has them: a product opens and truncates."""
    x = np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32)
    square = measure_function(lambda a: a * a, [x], SEMI2K)
    assert (square.cost.exchanges, square.cost.sent_bytes) == (2, 20 * x.size)
    relu = measure_function(jax.nn.relu, [x], SEMI2K)
    assert (relu.cost.exchanges, relu.cost.sent_bytes) == (8, 72 * x.size)
    np.testing.assert_allclose(relu.output, np.maximum(x, 0), atol=2**-16)


@pytest.mark.parametrize("kind", [K.SCALING, K.RELU_SOFTMAX])
def test_heads_share_exchanges_and_pay_their_own_bytes(kind):
    """What the latency file rests on: cost is a line in the number of heads."""
    config = small_config()
    costs = []
    for heads in (1, 2, 3):
        component = attention_core(kind, config, heads)
        costs.append(measure_function(component.function, component.inputs, SEMI2K).cost)
    first, second, third = costs
    assert third.exchanges - second.exchanges == second.exchanges - first.exchanges == 4
    assert third.sent_bytes - second.sent_bytes == second.sent_bytes - first.sent_bytes


def test_tokens_of_an_mlp_share_exchanges():
    costs = []
    for tokens in (1, 4, 7):
        component = mlp(MlpForm.LINEAR_RELU, small_config(), tokens)
        costs.append(measure_function(component.function, component.inputs, SEMI2K).cost)
    assert len({cost.exchanges for cost in costs}) == 1
    assert costs[2].sent_bytes - costs[1].sent_bytes == costs[1].sent_bytes - costs[0].sent_bytes


def test_layers_that_differ_in_order_alone_are_counted_once():
    config = small_config(depth=4)
    kept, other = K.RELU_SOFTMAX, K.SCALING
    forms = (MlpForm.FUSED_RELU, *(MlpForm.ACTIVATED,) * (config.tokens - 1))
    layers = (
        LayerArchitecture(heads=(kept, other, other), mlp=forms),
        LayerArchitecture(heads=(other, other, other), mlp=forms),
        LayerArchitecture(heads=(other, kept, other), mlp=forms[::-1]),
        LayerArchitecture(heads=(kept, other, other), mlp=MlpForm.ACTIVATED),
    )
    architecture = Architecture(layers=layers)
    whole = run(
        random_checkpoint(config, architecture),
        random_images(config),
        SEMI2K,
        reveal="logits",
        simulate=True,
    ).record
    counted = count_stages(config, architecture, SEMI2K).stages

    def costs(stages):
        return [(stage.name, stage.exchanges, stage.sent_bytes) for stage in stages]

    assert costs(counted) == costs(whole.stages)


@pytest.mark.long
def test_a_measured_table_prices_networks_that_it_did_not_run():
    """Built from single heads and MLPs, it must give whole networks' counts exactly."""
    config = small_config(activation=Activation.RELU)
    table = measure_latency(config, SEMI2K, (K.SCALING, K.RELU_SOFTMAX))
    for architecture in (
        Architecture.uniform(K.RELU_SOFTMAX, depth=2, heads=3),
        Architecture.uniform(K.SCALING, depth=2, heads=3, mlp=MlpForm.LINEAR),
    ):
        (counted,) = bench_rows(config, architecture)
        priced = table.price(architecture)
        assert priced.exchanges == pytest.approx(counted.exchanges, abs=1e-6)
        assert priced.sent_bytes == pytest.approx(counted.sent_bytes, rel=1e-3)
    assert table.source.startswith("measured")
    assert "INSECURE" in table.details["warning"]
    modelled = estimate(config).price(Architecture.uniform(K.SCALING, depth=2, heads=3))
    measured = table.price(Architecture.uniform(K.SCALING, depth=2, heads=3))
    assert modelled.exchanges == pytest.approx(measured.exchanges, rel=0.05)


def bench_rows(config, architecture):
    from mpcvit.bench.networks import random_checkpoint, random_images
    from mpcvit.secure.run import run

    checkpoint = random_checkpoint(config, architecture)
    yield run(checkpoint, random_images(config), SEMI2K, reveal="logits", simulate=True).record


def test_cheetah_has_no_rounds_to_price():
    with pytest.raises(UserError, match="no rounds"):
        measure_latency(small_config(), load_profile("cheetah-wan"), (K.SCALING,))


def test_breakdown_of_softmax_names_its_three_parts():
    config = replace(small_config(), heads=1, width=8)
    rows = bench_breakdown(
        config, {"semi2k-wan": SEMI2K}, most_tokens=20, measure=False, progress=quiet
    )
    tables = {row["table"] for row in rows}
    assert tables == {"block by heads", "block by tokens", "network of such blocks", "softmax"}
    parts = [row["part"] for row in rows if row["table"] == "softmax"]
    assert parts == ["max", "exponential", "reciprocal"]


def test_precision_of_relu_softmax_does_not_suffer_from_variance():
    rows = bench_precision(SEMI2K, progress=quiet)
    errors = {(row["attention"], row["variance"]): row["relative_error"] for row in rows}
    for variance in (1.0, 10.0, 100.0):
        assert errors["relu_softmax", variance] < 0.1 * errors["softmax", variance]
    # softmax loses precision up to a variance of 10; beyond, one weight of a row is nearly 1
    softmax = [errors["softmax", variance] for variance in (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)]
    assert softmax[:4] == sorted(softmax[:4])
    assert softmax[3:] == sorted(softmax[3:], reverse=True)


def test_mixed_networks_keep_their_ratio():
    config = small_config(depth=5)
    for ratio, kept in ((0.1, 2), (0.5, 8), (1.0, 15)):
        assert mixed(config, ratio).count(K.RELU_SOFTMAX) == kept
    assert set(paper_networks(config)) >= {"softmax", "mpcvit-0.7", "mpcvit-plus-0.3", "the_x"}
    evenly = paper_networks(config)["per-layer-0.5"].layers
    assert [layer.heads.count(K.RELU_SOFTMAX) for layer in evenly] == [2, 2, 2, 1, 1]
    beside_softmax = paper_networks(config)["softmax-scaling-0.5"]
    assert beside_softmax.count(K.SOFTMAX) == 8
    assert beside_softmax.count(K.SCALING) == 7


def test_mpcvit_plus_drops_gelu_by_token_or_by_layer():
    networks = paper_networks(small_config(depth=5))
    by_token = [layer.mlp for layer in networks["mpcvit-plus-0.3"].layers]
    bare = [layer.mlp for layer in networks["mpcvit-plus-no-relu-0.3"].layers]
    by_layer = [layer.mlp for layer in networks["mpcvit-plus-layer-0.3"].layers]
    assert all(set(forms) == {MlpForm.ACTIVATED, MlpForm.FUSED_RELU} for forms in by_token)
    without = {MlpForm.FUSED_RELU: MlpForm.FUSED}
    assert bare == [tuple(without.get(form, form) for form in forms) for forms in by_token]
    assert Counter(by_layer) == {MlpForm.ACTIVATED: 3, MlpForm.FUSED_RELU: 2}


def test_pruned_networks_are_widened_until_heads_divide_them():
    config = small_config(heads=4, width=16)
    networks = networks_as_written(config)
    shapes = {heads: networks[f"pruned-{heads}"] for heads in (1, 2, 3)}
    assert [model.width for model, _ in shapes.values()] == [16, 16, 18]
    for heads, (model, architecture) in shapes.items():
        uniform = Architecture.uniform(K.RELU_SOFTMAX, depth=model.depth, heads=heads)
        assert (model.heads, architecture) == (heads, uniform)
    profiles = {"semi2k-wan": SEMI2K}
    found = bench_network(config, profiles, only=["pruned-3"], measure=False, progress=quiet)
    assert [row["shape"] for row in found] == ["2 layers, 3 heads, width 18, 10 tokens"]


def test_gelu_by_tanh_is_counted_beside_erf_and_searched_networks_replace_random_ones():
    """45 exchanges of a GeLU against 64, in each of two layers."""
    config = small_config()
    searched = {
        name: Architecture.uniform(K.SCALING, depth=2, heads=3, mlp=form)
        for name, form in (("mpcvit-plus-0.3", MlpForm.FUSED), ("mine", MlpForm.ACTIVATED))
    }
    names = ["scaling", "scaling-gelu_tanh", *searched]
    profiles = {"semi2k-wan": SEMI2K}
    rows = list(
        bench_network(
            config, profiles, only=names, measure=False, progress=quiet, searched=searched
        )
    )
    exchanges = {row["network"]: row["exchanges"] for row in rows}
    assert exchanges["scaling"] - exchanges["scaling-gelu_tanh"] == 2 * (64 - 45)
    assert exchanges["mine"] == exchanges["scaling"]
    assert exchanges["scaling"] - exchanges["mpcvit-plus-0.3"] == 2 * (64 + 2)
    tanh = {row["network"] for row in rows if row["activation"] == "gelu_tanh"}
    assert tanh == {"scaling-gelu_tanh"}


@pytest.mark.long
def test_profile_writes_a_file_that_search_reads(tmp_path):
    from tests.configs import TINY

    out = tmp_path / "latency.json"
    printed = invoke("profile", TINY, "--out", out, "--kinds", "relu_softmax,scaling", "--json")
    assert json.loads(printed.stdout)["latency"] == str(out)
    searched = invoke(
        *("search", TINY, "--latency", out, "--out", tmp_path / "search"),
        *("--set", "search.epochs=1", "--json"),
    )
    assert json.loads(searched.stdout)["latency_source"].startswith("measured")
    for arguments, message in (
        (("--kinds", "sofmax"), "did you mean 'softmax'"),
        (("--profile", "semi2k"), "names no network to price"),
    ):
        assert message in invoke("profile", TINY, "--out", out, *arguments, code=2).stderr


def test_bench_commands_write_rows_and_figures(tmp_path, drawn):
    kinds = (K.SOFTMAX, K.SCALING, K.RELU_SOFTMAX)  # three are enough to see them ordered
    config = tmp_path / "small.toml"
    config.write_text(
        'name = "cifar10-nano"\n[model]\nimage_size = 4\npatch_size = 2\nclasses = 3\n'
        "depth = 1\nheads = 2\nwidth = 4\n[train]\nepochs = 1\n[data]\n"
        "mean = [0.5, 0.5, 0.5]\nstd = [0.5, 0.5, 0.5]\n"
    )
    searched = Architecture.uniform(K.SQUARE, depth=1, heads=2)
    searched.save(tmp_path / "mine.json")
    networks = ("--networks", "scaling,mine", "--arch", tmp_path / "mine.json")
    rows = {}
    for name, arguments in (
        ("attention", (config, "--kinds", ",".join(kind.name for kind in kinds))),
        ("network", (config, *networks, "--profiles", BOTH)),
        ("precision", ()),
    ):
        out = tmp_path / f"{name}.csv"
        invoke("bench", name, *arguments, "--out", out)
        with out.open() as file:
            rows[name] = list(csv.DictReader(file))
        assert out.with_suffix(".png").exists()
        ((axes,),) = (figure.axes for figure in drawn[-1:])
        if name == "precision":
            errors = [float(row["relative_error"]) for row in rows[name]]
            assert sorted(y for line in axes.lines for y in line.get_ydata()) == sorted(errors)
        else:
            modelled = {row[name]: float(row["modelled_s"]) for row in rows[name][::-1]}
            labels = [label.get_text() for label in axes.get_yticklabels()]
            widths = [bar.get_width() for bar in axes.patches[: len(modelled)]]
            assert dict(zip(labels, widths, strict=True)) == modelled
            assert widths == sorted(widths, reverse=True)
    found = {row["attention"]: row for row in rows["attention"]}
    assert list(found) == [kind.value for kind in kinds]
    assert found["softmax"]["paper_s"] == "6.82"
    exchanges = [int(found[name]["exchanges"]) for name in ("scaling", "relu_softmax", "softmax")]
    assert exchanges == sorted(exchanges)
    assert [row["network"] for row in rows["network"]] == ["scaling"] * 2 + ["mine"] * 2
    first, dealt, _, mine = rows["network"]
    assert mine["architecture"] == searched.digest()
    assert f"{first['profile']},{dealt['profile']}" == BOTH
    assert (first["exchanges"], first["sent_mb"]) == (dealt["exchanges"], dealt["sent_mb"])
    assert "INSECURE" in first["warning"]
    assert not dealt["warning"]
    refused = invoke("bench", "network", config, "--networks", "softmx", code=2).stderr
    assert "did you mean 'softmax'" in refused


def test_a_session_with_an_empty_and_with_a_full_cache(monkeypatch):
    """In threads; the cache is the bench's own, and the user's stays as it is."""
    caches = []

    def in_threads(*arguments, **settings):
        caches.append(Path(os.environ[CACHE_VARIABLE]))
        before = len(list(caches[-1].glob("programs/*")))
        assert before == len(caches) - 1
        return run(*arguments, simulate=True, **settings)

    monkeypatch.setattr(sessions, "run", in_threads)
    users = os.environ[CACHE_VARIABLE]
    rows = sessions.bench_set_up(
        small_config(depth=1),
        load_profile("semi2k"),
        [read_reference(path) for path in EXAMPLES],
        networks=["scaling"],
        forms=["lowered"],
        progress=quiet,
    )
    assert [row["cache"] for row in rows] == ["empty", "full"]
    assert rows[0]["exchanges"] == rows[1]["exchanges"] > 0
    assert caches[0] == caches[1] != Path(users)
    assert os.environ[CACHE_VARIABLE] == users
    assert not caches[0].exists()

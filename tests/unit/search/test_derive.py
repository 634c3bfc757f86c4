"""From alpha and beta to architectures: ratios, budgets, thresholds, ties."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.choices import ActivationGranularity, Granularity
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.artifacts.search import SearchResult
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.search.derive import MlpRule, derive_by_budget, derive_by_ratio
from tests.searches import ALPHA, make_result

K = table


@pytest.mark.parametrize(("ratio", "kind"), [(1.0, K.RELU_SOFTMAX), (0.0, K.SCALING)])
@pytest.mark.parametrize("granularity", Granularity)
def test_the_ends_are_plain_networks(ratio, kind, granularity):
    rows = {Granularity.LAYER: (1, 1), Granularity.HEAD: (3, 1), Granularity.ROW: (3, 5)}
    alpha = np.random.default_rng(0).random((3, *rows[granularity]))
    result = make_result(alpha, granularity=granularity)
    derived = derive_by_ratio(result, ratio)
    assert derived.architecture == Architecture.uniform(kind, depth=3, heads=3)


def test_ratio_keeps_the_largest_alphas():
    derived = derive_by_ratio(make_result(ALPHA), 0.4)
    kept = {
        (layer, head)
        for layer, own in enumerate(derived.architecture.layers)
        for head, kind in enumerate(own.heads)
        if kind is K.RELU_SOFTMAX
    }
    assert kept == {(0, 0), (1, 0), (1, 1), (1, 2)}  # 0.4 of 9, rounded up
    assert (derived.kept, derived.units, derived.tied_units) == (4, 9, ())
    assert derived.kept_alpha == pytest.approx(0.9 + 0.8 + 0.7 + 0.6)


def test_rows_of_a_head_mix():
    alpha = np.zeros((3, 3, 5))
    alpha[1, 2, [0, 3]] = 0.9, 0.8
    derived = derive_by_ratio(make_result(alpha, granularity=Granularity.ROW), 2 / 45)
    s, r = K.SCALING, K.RELU_SOFTMAX
    assert derived.architecture.layers[1].heads == (s, s, (r, s, s, r, s))
    assert derived.architecture.layers[0].heads == (s, s, s)


def test_ties_go_to_the_earlier_and_are_told():
    alpha = ((1.0, 0.5, 1.0), (1.0, 1.0, 0.0), (1.0, 0.5, 0.2))
    derived = derive_by_ratio(make_result(alpha), 3 / 9)
    assert derived.architecture.layers[0].heads[0] is K.RELU_SOFTMAX
    assert derived.architecture.layers[0].heads[2] is K.RELU_SOFTMAX
    assert derived.architecture.layers[1].heads[0] is K.RELU_SOFTMAX
    assert derived.tied_units == ("layer 1 head 1 row 0", "layer 2 head 0 row 0")
    assert derive_by_ratio(make_result(alpha), 5 / 9).tied_units == ()


def test_per_layer_spreads_evenly():
    counts = {
        ratio: [
            layer.heads.count(K.RELU_SOFTMAX)
            for layer in derive_by_ratio(
                make_result(ALPHA), ratio, per_layer=True
            ).architecture.layers
        ]
        for ratio in (3 / 9, 4 / 9, 8 / 9, 1.0)
    }
    # the odd head goes where the next largest alpha is: 0.7 of layer 1
    assert counts == {3 / 9: [1, 1, 1], 4 / 9: [1, 2, 1], 8 / 9: [2, 3, 3], 1.0: [3, 3, 3]}


@pytest.mark.parametrize("ratio", [-0.01, 1.01])
def test_ratios_outside_are_refused(ratio):
    with pytest.raises(UserError, match=r"must lie in \[0, 1\]"):
        derive_by_ratio(make_result(ALPHA), ratio)


def brute_force(result, budget_s):
    """The largest total alpha of all networks within a budget, tried one by one."""
    best = -1.0
    for kept in itertools.product((False, True), repeat=9):
        flat = iter(kept)
        heads = [[K.RELU_SOFTMAX if next(flat) else K.SCALING for _ in range(3)] for _ in range(3)]
        layers = tuple(
            replace(layer, heads=tuple(own))
            for layer, own in zip(
                Architecture.uniform(K.SCALING, depth=3, heads=3).layers, heads, strict=True
            )
        )
        cost = result.latency.price(Architecture(layers=layers))
        if result.latency.seconds(cost) <= budget_s + 1e-6:
            values = np.array(result.alpha).reshape(-1)
            best = max(best, float(values[list(kept)].sum()))
    return best


@given(
    alpha=st.lists(st.sampled_from((0.0, 0.1, 0.25, 0.5, 0.9, 1.0)), min_size=9, max_size=9),
    share=st.floats(0, 1.1),
    round_trip_ms=st.sampled_from((0.0, 1.0, 40.0)),
)
def test_a_budget_is_met_exactly(alpha, share, round_trip_ms):
    result = make_result(np.array(alpha).reshape(3, 3))
    network = NetworkLink(round_trip_ms=round_trip_ms, bandwidth_bytes_per_s=1e6)
    result = replace(result, latency=replace(result.latency, network=network))
    low, high = (
        result.latency.seconds(result.latency.price(Architecture.uniform(kind, depth=3, heads=3)))
        for kind in (K.SCALING, K.RELU_SOFTMAX)
    )
    budget_s = low + share * (high - low) + 1e-6
    derived = derive_by_budget(result, budget_s)
    assert derived.seconds <= budget_s
    assert derived.kept_alpha == pytest.approx(brute_force(result, budget_s), abs=1e-9)


def test_a_budget_prefers_layers_that_already_pay_for_their_exchanges():
    """A ratio would spread these heads over layers; seconds are better spent in one."""
    alpha = ((0.9, 0.5, 0.5), (0.8, 0.1, 0.1), (0.7, 0.1, 0.1))
    result = make_result(alpha)
    one_layer = derive_by_budget(result, derive_by_ratio(result, 1 / 9).seconds + 0.1)
    assert one_layer.architecture.layers[0].heads == (K.RELU_SOFTMAX,) * 3
    assert one_layer.kept_alpha == pytest.approx(1.9)


def test_too_small_a_budget_names_the_cheapest_network():
    with pytest.raises(UserError, match=r"no network fits 1 s: the cheapest, scaling in every"):
        derive_by_budget(make_result(ALPHA), 1.0)


def test_threshold_binarises_beta():
    beta = ((0.75, 0.76, 0.0, 1.0, 0.5), (1.0,) * 5, (0.1,) * 5)
    result = make_result(ALPHA, beta, activation=ActivationGranularity.TOKEN)
    g, f = MlpForm.ACTIVATED, MlpForm.FUSED_RELU
    layers = derive_by_ratio(result, 0.5).architecture.layers  # 0.75 unless given
    assert [layer.mlp for layer in layers] == [(f, g, f, g, f), g, f]
    rule = MlpRule(threshold=0.0, form=MlpForm.FUSED)
    layers = derive_by_ratio(result, 0.5, mlp=rule).architecture.layers
    assert [layer.mlp for layer in layers] == [(g, g, MlpForm.FUSED, g, g), g, g]
    everything = MlpRule(threshold=1.0, form=MlpForm.LINEAR)
    layers = derive_by_budget(result, 1e9, mlp=everything).architecture.layers
    assert {layer.mlp for layer in layers} == {MlpForm.LINEAR}


def test_thresholds_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="did not weigh GeLU"):
        derive_by_ratio(make_result(ALPHA), 0.5, mlp=MlpRule())
    with pytest.raises(UserError, match=r"must lie in \[0, 1\], not 1.5"):
        MlpRule(threshold=1.5)
    with pytest.raises(UserError, match="cannot take the form 'activated'"):
        MlpRule(form=MlpForm.ACTIVATED)


def test_result_round_trip_and_damage(tmp_path):
    path = tmp_path / "search.json"
    result = make_result(ALPHA, ((0.5,),) * 3, activation=ActivationGranularity.LAYER)
    result.save(path)
    assert SearchResult.load(path) == SearchResult.load(tmp_path) == result
    text = path.read_text()
    for found, broken, message in (
        ("mpcvit-search/2", "mpcvit-search/9", "is not a search"),
        ("0.9", "1.9", r"'alpha' must lie in \[0, 1\]"),
        ('"alpha"', '"alfa"', "unknown key 'alfa'"),
        ('"depth": 3', '"depth": 4', "was made for 3 layers"),
    ):
        path.write_text(text.replace(found, broken, 1))
        with pytest.raises(UserError, match=message):
            SearchResult.load(path)
    path.unlink()
    with pytest.raises(UserError, match="there is no search"):
        SearchResult.load(tmp_path)

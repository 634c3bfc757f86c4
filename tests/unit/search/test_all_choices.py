"""Searches of norms, activations and tokens beside attention: prices, budgets and their limits."""

import itertools
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture
from mpcvit.artifacts.choices import CostForm
from mpcvit.artifacts.config import BlockForm, load_config
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.search import SearchResult
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.kinds.table import RELU_SOFTMAX, SCALING
from mpcvit.search.derive import derive_by_budget, derive_by_ratio
from mpcvit.search.objective import FormPrices, NetworkShares, network_seconds
from tests.configs import TINY
from tests.searches import MODEL, make_full_result

L, B = NormForm.LAYER, NormForm.BATCH
SMALL = replace(MODEL, depth=2, heads=2)
COUNTS = (SMALL.tokens, 3)


def every_network(result):
    """Yield every architecture with what it keeps, written out from the shares."""
    model = result.model
    per_layer = list(
        itertools.product(
            itertools.product((True, False), repeat=model.heads),
            (L, B),
            (L, B),
            (Activation.GELU, Activation.QUADRATIC),
            COUNTS,
        )
    )
    for layers in itertools.product(per_layer, repeat=model.depth):
        counts = [layer[-1] for layer in layers]
        if sorted(counts, reverse=True) != counts:
            continue
        for norm in (L, B):
            kept, made = result.norms[-1][0] * (norm is L), []
            for index, (heads, norm1, norm2, activation, tokens) in enumerate(layers):
                alpha = [own[0] for own in result.alpha[index]]
                kept += sum(a for a, own in zip(alpha, heads, strict=True) if own)
                kept += result.norms[index][0] * (norm1 is L) + result.norms[index][1] * (
                    norm2 is L
                )
                kept += result.beta[index][0] * (activation is Activation.GELU)
                kept += result.tokens[index][0] * (tokens == COUNTS[0])
                form = FormChoice(norm1=norm1, norm2=norm2, activation=activation, tokens=tokens)
                kinds = tuple(RELU_SOFTMAX if own else SCALING for own in heads)
                made.append(LayerArchitecture(heads=kinds, form=form))
            yield Architecture(layers=tuple(made), norm=norm), kept


def longest_unbounded(architecture):
    """Return how many layers follow each other in which the residual passes no layer norm."""
    places = "".join("L" if layer.form.norm2 is L else "b" for layer in architecture.layers)
    return max(map(len, places.split("L")))


@pytest.mark.parametrize(("every", "most"), [(0, 2), (1, 0), (2, 1), (3, 1)])
def test_a_budget_is_met_exactly_over_all_choices(every, most):
    """Against trying all 14,000 networks, at budgets between the cheapest and the dearest."""
    result = make_full_result(SMALL, seed=every)
    table = result.latency
    tried = [
        (table.seconds(table.price(architecture)), kept)
        for architecture, kept in every_network(result)
        if longest_unbounded(architecture) <= most
    ]
    seconds = sorted(own for own, _ in tried)
    for budget_s in (seconds[0], *np.quantile(seconds, (0.05, 0.4, 0.8)), seconds[-1]):
        budget_s += 1e-6
        derived = derive_by_budget(result, budget_s, layer_norm_every=every)
        best = max(kept for own, kept in tried if own <= budget_s)
        assert derived.importance == pytest.approx(best)
        assert derived.seconds == table.seconds(table.price(derived.architecture)) <= budget_s
        assert longest_unbounded(derived.architecture) <= most
    with pytest.raises(UserError, match="no network fits") as refused:
        derive_by_budget(result, seconds[0] - 1e-3, layer_norm_every=every)
    assert f"takes {seconds[0]:.3f} s" in str(refused.value)
    assert "scaling in every head" in str(refused.value)


def test_a_layer_norm_stays_where_the_whole_residual_passes():
    result = make_full_result(SMALL)
    cheapest = derive_by_budget(result, 1e9)  # everything fits, so everything of worth is kept
    assert longest_unbounded(cheapest.architecture) == 0
    nothing = replace(result, norms=((0.0, 0.0),) * 2 + ((0.0,),))
    assert longest_unbounded(derive_by_budget(nothing, 1e9).architecture) == 0
    free = derive_by_budget(nothing, 1e9, layer_norm_every=0)
    assert {
        own for layer in free.architecture.layers for own in (layer.form.norm1, layer.form.norm2)
    } == {B}
    # of the pre form no norm is passed by the whole residual
    pre = replace(nothing, model=replace(SMALL, block=BlockForm.PRE))
    assert longest_unbounded(derive_by_budget(pre, 1e9).architecture) == 2


@pytest.mark.parametrize(("every", "kept"), [(3, 2), (4, 2), (7, 1), (20, 1)])
def test_layer_norms_are_spread_over_a_deep_network(every, kept):
    """One at an end bounds nothing at the other. The first comes early, for odd pictures."""
    deep = replace(SMALL, depth=7)
    result = make_full_result(deep)
    nothing = replace(result, norms=((0.0, 0.0),) * 7 + ((0.0,),))
    architecture = derive_by_budget(nothing, 1e9, layer_norm_every=every).architecture
    assert longest_unbounded(architecture) < every
    assert L in {layer.form.norm2 for layer in architecture.layers[:2]}
    assert sum(layer.form.norm2 is L for layer in architecture.layers) == kept


def test_what_a_search_does_not_choose_stays_as_the_model_says():
    result = make_full_result(SMALL)
    attention = replace(
        result,
        search=replace(result.search, choices=result.search.choices[:2], token_counts=()),
        beta=(),
        tokens=(),
    )
    derived = derive_by_budget(attention, 1e9)
    forms = [layer.form for layer in derived.architecture.layers]
    assert {form.activation for form in forms} == {Activation.GELU}
    assert {form.tokens for form in forms} == {SMALL.tokens}


def test_a_ratio_of_all_choices_is_refused():
    with pytest.raises(UserError, match="a ratio counts heads alone"):
        derive_by_ratio(make_full_result(SMALL), 0.5)


def test_shares_that_do_not_fit_are_refused(tmp_path):
    result = make_full_result(SMALL)
    result.save(tmp_path / "search.json")
    assert SearchResult.load(tmp_path) == result
    with pytest.raises(UserError, match="shares of norms do not fit"):
        replace(result, norms=result.norms[:-1])
    with pytest.raises(UserError, match="shares of tokens do not fit"):
        replace(result, tokens=())
    with pytest.raises(UserError, match=r"'norms' must lie in \[0, 1\]"):
        replace(result, norms=((2.0, 0.0), *result.norms[1:]))


def shares_of(architecture):
    """Return the shares at the ends that give an architecture."""
    layers = architecture.layers
    return NetworkShares(
        alpha=[jnp.array([[float(kind is RELU_SOFTMAX)] for kind in own.heads]) for own in layers],
        beta=[jnp.array([float(own.form.activation is Activation.GELU)]) for own in layers],
        norms=[
            *(
                jnp.array([float(own.form.norm1 is L), float(own.form.norm2 is L)])
                for own in layers
            ),
            jnp.array([float(architecture.norm is L)]),
        ],
        tokens=[jnp.array([float(own.form.tokens == COUNTS[0])]) for own in layers],
    )


def prices_of(result):
    return [
        [FormPrices.of(result.model, result.search, result.latency, layer, own) for own in COUNTS]
        for layer in range(result.model.depth)
    ]


def test_seconds_of_the_search_are_those_of_the_table_at_the_ends():
    """Where all heads of a layer agree, and a later norm asks for every gain."""
    result = make_full_result(SMALL)
    prices, table = prices_of(result), result.latency
    architectures = [
        own
        for own, _ in every_network(result)
        if own.norm is L and all(len(layer.kinds) == 1 for layer in own.layers)
    ]
    for architecture in architectures[::97]:
        expected = table.seconds(table.price(architecture)) - table.seconds(table.rest)
        found = network_seconds(shares_of(architecture), prices, CostForm.SHARED_ROUNDS)
        assert float(found) == pytest.approx(expected, abs=2e-5)


def test_tokens_that_one_layer_merges_are_saved_by_all_after_it():
    result = make_full_result(SMALL)
    prices = prices_of(result)

    def seconds(first, second):
        own = replace(
            shares_of(next(every_network(result))[0]),
            tokens=[jnp.array([first]), jnp.array([second])],
        )
        return float(network_seconds(own, prices, CostForm.ADDITIVE))

    assert seconds(0.0, 1.0) == pytest.approx(seconds(0.0, 0.0))
    assert seconds(1.0, 0.0) != pytest.approx(seconds(0.0, 0.0), abs=1e-3)
    assert seconds(0.5, 1.0) == pytest.approx((seconds(0.0, 1.0) + seconds(1.0, 1.0)) / 2)


def test_a_search_of_more_than_attention_needs_prices_of_lowered_networks():
    with pytest.raises(UserError, match=r"prices attention alone.*mpcvit profile CONFIG"):
        estimate(MODEL).require_choices("latency.json")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (['search.choices=["norm"]'], 'must have "attention" among them'),
        (
            ['search.choices=["attention","norm"]', "model.norm=batch"],
            "'model.norm' must be \"layer\"",
        ),
        (
            ['search.choices=["attention","activation"]', "model.activation=quadratic"],
            "'model.activation' cannot be \"quadratic\"",
        ),
        (
            ['search.choices=["attention","tokens"]', "search.granularity=row"],
            "'search.granularity' cannot be \"row\"",
        ),
        (["search.token_counts=[3]"], 'is for search.choices with "tokens"'),
        (
            ['search.choices=["attention","tokens"]', "search.token_counts=[4]"],
            "cannot go from 5 to 4 tokens",
        ),
        (['search.choices=["attention","heads"]'], "cannot be 'heads'"),
    ],
)
def test_choices_that_cannot_be_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        load_config(TINY, settings).require_searchable()

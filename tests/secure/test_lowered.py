"""Lowered programs in the simulator: the emulation's logits, at pinned costs."""

import contextlib
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import BlockForm, Pooling
from mpcvit.artifacts.forms import Activation, NormForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.attention.kind_math import Context, math_of
from mpcvit.bench.latency import measure_lowered_latency
from mpcvit.bench.lowered import (
    adapt_plan,
    bench_lowering,
    lower_with_plan,
    plan_for,
    read_reference,
)
from mpcvit.kinds import table
from mpcvit.lowering.calibrate import relative_error
from mpcvit.lowering.jaxpr_walk import in_fixed_point
from mpcvit.lowering.lower import lower
from mpcvit.lowering.sites import EMBED_NORM, HEAD_NORM, site_label
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.components import Component
from mpcvit.secure.probe import measure_function
from mpcvit.secure.spu.stages import cut_lowered
from tests import reference
from tests.marks import mostly_long
from tests.models import (
    ENDS,
    random_pixels,
    rows_of_every_kind,
    small_checkpoint,
    small_config,
    tame,
)
from tests.tolerances import FXP26, assert_close

K = table


def lowered(architecture, profile="semi2k", **changes):
    """Private runs are held to the emulation, so any budget serves, and a large one is quick."""
    config = small_config(depth=len(architecture.layers), mlp_ratio=1.2, **changes)
    checkpoint = small_checkpoint(config, architecture)
    if config.norm is not NormForm.LAYER:
        tame(checkpoint.parameters)
    images = list(random_pixels(config, 64))
    return lower(checkpoint, images, profile, error_budget=1.0, guard=False)


def run(program, count=1, profile="semi2k", batch_size=1):
    pixels = random_pixels(program.model, count)
    result = mpcvit.run(
        program, pixels, profile, batch_size=batch_size, reveal="logits", simulate=True
    )
    return result, program(program.preprocess(list(pixels)))


def exchanges_of(program, *names):
    return sum(program.plan[site_label(0, name)].exchanges for name in names)


def exchanges_in(program, layer):
    prefix = site_label(layer, "")
    return sum(own.exchanges for label, own in program.plan.items() if label.startswith(prefix))


def stages(record, batch):
    return {stage.name: stage for stage in record.batches[batch].stages}


def every_mlp_form(block):
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(9))
    mixed = LayerArchitecture(heads=(K.RELU_SOFTMAX, K.SCALING, K.QUAD2), mlp=forms)
    return lowered(Architecture(layers=(mixed,)), block=block, pooling=Pooling.MEAN)


@pytest.mark.parametrize("block", mostly_long(BlockForm, BlockForm.LITE))
def test_private_and_emulated_logits_agree(block):
    program = every_mlp_form(block)
    result, expected = run(program, count=2, batch_size=2)
    assert_close(result.logits, expected, FXP26)


@pytest.mark.parametrize(
    "end",
    mostly_long(["class and mean beside extra tokens", "norm of the mean"], "norm of the mean"),
)
def test_other_ends(end):
    """Each also with a norm after the embedding, as CLIP has it."""
    architecture = Architecture.uniform(K.SCALING, depth=1, heads=3)
    program = lowered(architecture, block=BlockForm.PRE, **ENDS[end], embed_norm=True)
    assert {EMBED_NORM, HEAD_NORM} <= set(program.plan)
    program = program.changed(trust=replace(program.public.trust, guard=True))
    result, expected = run(program, count=2, batch_size=2)
    assert_close(result.logits, expected, FXP26)


@pytest.fixture(scope="module")
def relu_softmax():
    program = lowered(Architecture.uniform(K.RELU_SOFTMAX, depth=2, heads=3))
    result, expected = run(program, count=2)
    assert_close(result.logits, expected, FXP26)
    return program, result.record


@pytest.mark.long
def test_every_mlp_form_through_a_dealer():
    result, expected = run(every_mlp_form(BlockForm.LITE), profile="semi2k-dealer")
    assert_close(result.logits, expected, FXP26)


@pytest.mark.long
def test_through_a_dealer(relu_softmax):
    """Where masks may be reused; with the first party's they never are."""
    program, record = relu_softmax
    result, expected = run(program, profile="semi2k-dealer")
    assert_close(result.logits, expected, FXP26)
    assert (record.profile.reuse_weight_masks, result.record.profile.reuse_weight_masks) == (
        False,
        True,
    )


def test_exchanges_are_what_the_plan_says(relu_softmax):
    program, record = relu_softmax
    for index in range(program.model.depth):
        # squares and products of both norms, six products of matrices, a ReLU, a division, a gain
        expected = exchanges_in(program, index) + 4 + 6 + 9 + 1 + 1
        assert stages(record, 0)[f"block {index}"].exchanges == expected
    assert stages(record, 0)["embedding"].exchanges == 1
    assert stages(record, 0)["head"].exchanges == program.plan[HEAD_NORM].exchanges + 3


def test_every_stage_agrees_with_its_emulation(relu_softmax):
    """Layer by layer: each stage is given what the emulation gave the stage before."""
    program, _ = relu_softmax
    profile = program.engine.apply(load_profile("semi2k"))
    x = program.preprocess(list(random_pixels(program.model, 1)))
    for stage in cut_lowered(program.public, program.plan):
        own = stage.parameters(program.parameters)
        component = Component.of(stage.function, own, x)
        private = measure_function(component.function, component.inputs, profile).output
        x = in_fixed_point(stage.function, program.engine.fraction_bits)(own, x)
        assert_close(private, x, FXP26)


def test_a_network_takes_after_an_example_of_its_kinds(relu_softmax):
    program, _ = relu_softmax
    own = program.public
    softmax, scaling, both = (
        Architecture.uniform(kind, depth=program.model.depth, heads=program.model.heads)
        for kind in (table.SOFTMAX, table.SCALING, table.RELU_SOFTMAX)
    )
    reference = Path(__file__).parents[2] / "src/mpcvit/bench/programs/softmax.json"
    plan = adapt_plan(read_reference(reference).plan, program.model, softmax)
    other = replace(own, architecture=softmax, plan=plan)
    assert plan_for(both, [other, own]) is own.plan
    assert plan_for(softmax, [own, other]) is other.plan
    assert plan_for(scaling, [own, other]) is own.plan


def test_plain_and_lowered_are_counted_side_by_side(relu_softmax):
    program, record = relu_softmax
    profile = load_profile("semi2k-wan")
    plain, own = bench_lowering(
        program.model,
        {"semi2k-wan": profile},
        [program.public],
        networks={"relu_softmax": program.architecture},
        batch_sizes=[1],
        reveal=Reveal.LOGITS,
        stage="block 0",
        measure=False,
        progress=lambda what, done, total: None,
    )
    assert (plain["form"], own["form"]) == ("plain", "lowered")
    # the same stand-ins, so the counts of the trained network's own program
    assert own["exchanges"] == stages(record, 1)["block 0"].exchanges < plain["exchanges"] / 2
    parts = [int(part.split()[1]) for part in own["made_of"].split("; ")]
    assert sum(parts) == own["exchanges"]
    assert own["set_up_mb"] == 0  # nothing is reused without a dealer
    assert own["times_plain"] == round(own["modelled_s"] / plain["modelled_s"], 3)


@pytest.mark.long
def test_the_bench_tells_what_reused_masks_take_and_save(relu_softmax):
    program, record = relu_softmax
    (own,) = bench_lowering(
        program.model,
        {"semi2k-dealer-wan": load_profile("semi2k-dealer-wan")},
        [program.public],
        networks={"relu_softmax": program.architecture},
        batch_sizes=[1],
        reveal=Reveal.LOGITS,
        stage=None,
        measure=False,
        progress=lambda what, done, total: None,
        lowered_only=True,
    )
    assert own["times_plain"] == ""
    fresh = record.batches[0].total
    assert (own["exchanges"], own["fresh_mb"]) == (
        fresh.exchanges,
        round(fresh.sent_bytes / 1e6, 3),
    )
    saved_mb = own["set_up_mb"] / 2
    assert own["sent_mb"] == pytest.approx(own["fresh_mb"] - saved_mb, abs=0.001)
    saved_s = own["fresh_s"] - own["modelled_s"]
    if saved_s > 0:  # CPU seconds of so small a network are noise
        assert own["pays_from"] - 1 < own["set_up_s"] / saved_s <= own["pays_from"]


@pytest.mark.long
def test_a_latency_file_of_a_program_prices_other_lowered_networks(relu_softmax):
    program, _ = relu_softmax
    profile = load_profile("semi2k-wan")
    table = measure_lowered_latency(program, profile, (K.RELU_SOFTMAX, K.SCALING))
    layers = (
        LayerArchitecture(heads=(K.SCALING, K.RELU_SOFTMAX, K.RELU_SOFTMAX)),
        LayerArchitecture(heads=(K.SCALING,) * 3, mlp=MlpForm.FUSED_RELU),
    )
    mixed = Architecture(layers=layers)
    other = lower_with_plan(program.plan, program.model, mixed, program.engine)
    record = mpcvit.run(
        other, random_pixels(program.model, 2), profile, reveal="logits", simulate=True
    ).record
    # a layer of two forms has a product more than one of either, which no line can tell
    counted = record.batches[1].total.exchanges
    assert counted <= table.price(mixed).exchanges <= counted + len(layers)


def test_scaling_heads_ride_along():
    """A layer with one ReLU-softmax head costs the exchanges of one that has no others."""
    both = LayerArchitecture(heads=(K.SCALING, K.RELU_SOFTMAX, K.SCALING), mlp=MlpForm.FUSED)
    program = lowered(Architecture(layers=(both,)))
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    block = stages(result.record, 0)["block 0"]
    assert block.exchanges == exchanges_in(program, 0) + 4 + 5 + 9 + 1


def test_all_scaling_takes_two_products():
    program = lowered(Architecture.uniform(K.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED))
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    block = stages(result.record, 0)["block 0"]
    assert block.exchanges == exchanges_of(program, "norm1", "norm2") + 4 + 5


def test_softmax_needs_no_comparison():
    heads = (K.SOFTMAX, K.LINFORMER, K.SOFTMAX)
    program = lowered(
        Architecture(layers=(LayerArchitecture(heads=heads, mlp=MlpForm.FUSED),)),
        qkv_bias=True,
    )
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    approximations = ("norm1", "exponential", "row_scale", "denominator", "norm2")
    # both norms' own, products of matrices, Linformer's; a product, a square and a division
    assert stages(result.record, 0)["block 0"].exchanges == (
        exchanges_of(program, *approximations) + 4 + 5 + 1 + 3
    )


def squares_of(kind, config):
    """Return how often in a row a kind squares. Scores are empty: only the phases count."""
    own, count = math_of(kind), 0
    scores, context = jnp.zeros((1, 0, config.tokens)), Context(config=config)
    if own.lowered is None or own.fold is not None:  # XNorm's is counted below; THE-X has none
        return 0
    phases, answers = own.lowered(scores, context), None
    with contextlib.suppress(StopIteration):
        while True:
            step = phases.send(answers)
            count += step.phase == "square"
            answers = [operand[0] if step.phase == "multiply" else operand for operand in step[1]]
    return count


@pytest.mark.long
def test_rows_of_every_kind_share_exchanges():
    mixed = LayerArchitecture(heads=tuple(rows_of_every_kind(9)), mlp=MlpForm.FUSED)
    program = lowered(Architecture(layers=(mixed,)), pooling=Pooling.MEAN)
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    through, expected = run(program, count=LEAST_RUNS, profile="semi2k-dealer")
    assert through.record.set_up.warm_up_bytes > 0  # every kind of product may reuse masks
    assert_close(through.logits, expected, FXP26)
    names = ("norm1", "exponential", "row_scale", "cube", "denominator", "norm2")
    count = exchanges_of(program, *names)
    count += max(exchanges_of(program, name) for name in ("query_length", "product_length"))
    count += 4 + 5 + 9 + 1  # norms, products of matrices, a ReLU, a product that divides
    count += 1 + 1  # Linformer's product of matrices, softmax's product
    count += max(squares_of(kind, program.model) for kind in K.KINDS.values())
    count += 2 + 2  # XNorm's products of matrices, its square and its product
    count += 3 + 2 * 9  # THE-X's network
    assert stages(result.record, 0)["block 0"].exchanges == count


@pytest.mark.parametrize(
    ("kinds", "own"),
    [
        # a ReLU beside two squares, and a product that divides
        ((K.RELU_BY_KEYS, K.SQUARE_BY_KEYS, K.POWER_SOFTMAX), 9 + 2 + 1),
        pytest.param((K.RELU_BY_KEYS,) * 3, 9, marks=pytest.mark.long),  # to say whose mistake
        pytest.param((K.SQUARE_BY_KEYS,) * 3, 1, marks=pytest.mark.long),
        pytest.param((K.POWER_SOFTMAX,) * 3, 2 + 1, marks=pytest.mark.long),
    ],
    ids=["mixed", "relu_by_keys", "square_by_keys", "power_softmax"],
)
def test_kinds_beyond_the_paper(kinds, own):
    """Against the float64 reference too, and at the exchanges of their phases alone."""
    layer = LayerArchitecture(heads=kinds, mlp=MlpForm.FUSED)
    program = lowered(Architecture(layers=(layer,)))
    result, expected = run(program, count=2)
    assert_close(result.logits, expected, FXP26)
    checkpoint = small_checkpoint(program.model, program.architecture)
    images = program.preprocess(list(random_pixels(program.model, 2)))
    exact = reference.vit(images, program.model, program.architecture, checkpoint.parameters)
    assert relative_error(result.logits, exact) <= 0.1
    sites = {site for kind in kinds for site in kind.sites}
    approximated = exchanges_of(program, "norm1", *sites, "norm2")
    # beside them both norms' own, and five products of matrices
    assert stages(result.record, 0)["block 0"].exchanges == approximated + 4 + 5 + own


def test_the_same_program_under_another_protocol():
    architecture = Architecture.uniform(K.RELU_SOFTMAX, depth=1, heads=3, mlp=MlpForm.FUSED)
    program = lowered(architecture, profile="aby3")
    result, expected = run(program, profile="aby3")
    assert_close(result.logits, expected, 2e-3)
    assert np.isfinite(result.logits).all()


POLYNOMIAL = {
    "norm": NormForm.BATCH,
    "activation": Activation.QUADRATIC,
    "image_size": 8,
    "layer_tokens": (17, 9, 5),
    "head_dim_qk": 3,
}


@pytest.mark.parametrize("block", mostly_long(BlockForm, BlockForm.LITE))
def test_constant_norms_and_parabolas_take_no_exchange_but_a_square(block):
    architecture = Architecture.uniform(K.SCALING, depth=3, heads=3)
    program = lowered(architecture, block=block, **POLYNOMIAL)
    result, expected = run(program)
    assert_close(result.logits, expected, FXP26)
    counts = [stage.exchanges for stage in result.record.batches[0].stages]
    # two products of attention, its output with up, a square, down with the next qkv; the
    # embedding computes the first qkv and the head the last down; around them sharing and opening
    assert counts == [1, 1, 5, 5, 4, 1, 1]


def test_a_kept_layer_norm_takes_its_own_exchanges_and_a_product():
    architecture = Architecture.uniform(K.SCALING, depth=3, heads=3)
    kept = lowered(architecture, block=BlockForm.LITE, layer_norms=("1.norm2",), **POLYNOMIAL)
    result, expected = run(kept)
    assert_close(result.logits, expected, FXP26)
    counts = {name: stage.exchanges for name, stage in stages(result.record, 0).items()}
    # its square and its product; it keeps two products of matrices apart
    assert counts["block 1"] == 5 + exchanges_in(kept, 1) + 2 + 1
    assert (counts["block 0"], counts["block 2"]) == (5, 4)

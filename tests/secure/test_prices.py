"""Prices without a run, against what SPU counts: heads by kind, MLPs by form, mixed layers."""

import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.latency import Cost
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.bench.latency import measure_choice_latency, stage_costs
from mpcvit.bench.lowered import lower_with_plan, read_reference
from mpcvit.bench.networks import random_checkpoint, random_images
from mpcvit.cli.bench.tables import EXAMPLES
from mpcvit.cost.estimate import estimate
from mpcvit.kinds import table
from mpcvit.secure.card import LEAST_RUNS, ModelCard
from mpcvit.secure.components import attention_core, mlp
from mpcvit.secure.probe import measure_function
from mpcvit.secure.run import run
from mpcvit.secure.spu.compile import compile_network
from tests.models import small_checkpoint, small_config

K, F = table, MlpForm
SEMI2K = load_profile("semi2k")
DEALER = load_profile("semi2k-dealer-wan")
CIFAR = ModelConfig(image_size=32, patch_size=4, classes=10, depth=1, heads=4, width=256)


def assert_priced(kind, config):
    part = attention_core(kind, config, config.heads)
    counted = measure_function(part.function, part.inputs, SEMI2K).cost
    priced = kind.cost(config).total(config.heads)
    assert counted.exchanges == priced.exchanges
    sent_bytes = max(counted.sent_bytes, counted.received_bytes)
    # A division sends a byte less than its price. Few inverse roots send 429 bytes each, but
    # are priced as 461, which many send.
    assert sent_bytes == pytest.approx(priced.sent_bytes, rel=0.04 if kind is K.XNORM else 0.002)


@pytest.mark.parametrize("kind", K.KINDS.values(), ids=str)
def test_heads_of_every_kind(kind):
    assert_priced(kind, small_config())


@pytest.mark.parametrize("keys", [6, 7])
def test_levels_of_a_maximum(keys):
    """Of 7 keys, two levels leave one behind: 4 levels, and not 3."""
    assert_priced(K.LINFORMER, small_config(linformer_ratio=keys / 10))


@pytest.mark.parametrize(("power", "offset"), [(2, 0.0), (6, 4.0)])
def test_heads_of_another_power(power, offset):
    constants = {"power": power, "power_offset": offset}
    assert_priced(K.POWER_SOFTMAX, small_config(constants=constants))


@pytest.mark.parametrize(
    ("form", "exchanges", "megabytes"),
    [(F.FUSED, 2, 0.72), (F.FUSED_RELU, 10, 1.92), (F.LINEAR, 4, 2.70), (F.LINEAR_RELU, 12, 3.89)],
)
def test_an_mlp_of_the_papers_shape(form, exchanges, megabytes):
    """A product of secret weights would add 2 exchanges and 3.4 MB to the fused forms."""
    part = mlp(form, CIFAR, CIFAR.tokens)
    counted = measure_function(part.function, part.inputs, SEMI2K).cost
    priced = estimate(CIFAR).mlp_cost(0, form).total(CIFAR.tokens)
    assert counted.exchanges == priced.exchanges == exchanges
    sent_bytes = max(counted.sent_bytes, counted.received_bytes)
    assert sent_bytes == pytest.approx(priced.sent_bytes, rel=0.002)
    assert sent_bytes == pytest.approx(1e6 * megabytes, rel=0.01)


def test_an_mlp_of_mixed_tokens():
    """Tokens of both forms pay for both: 68 exchanges with GeLU, 10 fused with a ReLU."""
    forms = (F.ACTIVATED,) * 9 + (F.FUSED_RELU,) * 47 + (F.ACTIVATED,) * 9
    part = mlp(forms, CIFAR, CIFAR.tokens)
    counted = measure_function(part.function, part.inputs, SEMI2K).cost
    priced = estimate(CIFAR).price_layer(0, LayerArchitecture(heads=(), mlp=forms))
    assert counted.exchanges == priced.exchanges == 68 + 10
    sent_bytes = max(counted.sent_bytes, counted.received_bytes)
    assert sent_bytes == pytest.approx(priced.sent_bytes, rel=0.002)


def test_a_layer_of_mixed_heads():
    """A whole network of one layer; two exchanges carry the image and the logits."""
    heads = (K.RELU_SOFTMAX, K.SCALING, K.SOFTMAX, K.SCALING)
    architecture = Architecture(layers=(LayerArchitecture(heads=heads, mlp=F.FUSED),))
    record = run(
        random_checkpoint(CIFAR, architecture),
        random_images(CIFAR),
        SEMI2K,
        reveal="logits",
        simulate=True,
    ).record
    priced = estimate(CIFAR).price(architecture)
    assert record.exchanges == priced.exchanges + 2
    assert record.sent_bytes == pytest.approx(priced.sent_bytes, rel=0.002)


def test_one_token_that_keeps_gelu_keeps_its_exchanges():
    """Token by token, only bytes fall: GeLU's exchanges go with the last token."""
    table = estimate(CIFAR)

    def priced(kept):
        forms = (F.ACTIVATED,) * kept + (F.FUSED_RELU,) * (CIFAR.tokens - kept)
        return table.price_layer(0, LayerArchitecture(heads=(), mlp=forms))

    whole, few, none = (priced(kept) for kept in (CIFAR.tokens, 1, 0))
    assert few.exchanges > whole.exchanges > none.exchanges  # few pays for the fused product too
    assert whole.sent_bytes > few.sent_bytes > none.sent_bytes


@pytest.mark.parametrize("forms", [F.FUSED, (F.ACTIVATED, *[F.FUSED_RELU] * 4)])
def test_secret_weights_are_shared_as_products(forms):
    config = small_config()
    if isinstance(forms, tuple):
        forms = forms + (F.FUSED,) * (config.tokens - len(forms))
    layer = LayerArchitecture(heads=(K.SCALING,) * config.heads, mlp=forms)
    architecture = Architecture(layers=(layer,) * config.depth)
    checkpoint = small_checkpoint(config, architecture)
    shapes = compile_network(ModelCard.of(checkpoint), SEMI2K, 1).parameters
    assert shapes["blocks_0.mlp.fused.kernel"] == (config.width, config.width)
    assert ("blocks_0.mlp.up.kernel" in shapes) == isinstance(forms, tuple)


@pytest.fixture(scope="module")
def lowered_prices():
    """Prices of every choice of a small lowered network: sixteen networks, simulated."""
    config = small_config(image_size=8, depth=3)
    references = [read_reference(path) for path in EXAMPLES[:1]]
    return measure_choice_latency(config, DEALER, [K.RELU_SOFTMAX], (9,), references), config


def chosen(norm1, norm2, activation, tokens, heads):
    """A layer of three heads, by letters: L is a layer norm, g is GeLU, R is ReLU softmax."""
    form = FormChoice(
        norm1=NormForm.LAYER if norm1 == "L" else NormForm.BATCH,
        norm2=NormForm.LAYER if norm2 == "L" else NormForm.BATCH,
        activation=Activation.GELU if activation == "g" else Activation.QUADRATIC,
        tokens=tokens,
    )
    kinds = tuple(K.RELU_SOFTMAX if own == "R" else K.SCALING for own in heads)
    return LayerArchitecture(heads=kinds, form=form)


@pytest.mark.long
@pytest.mark.parametrize(
    ("layers", "norm"),
    [
        ((("B", "L", "q", 17, "SSS"), ("B", "B", "g", 9, "RSS"), ("B", "B", "q", 9, "SSS")), "B"),
        ((("L", "B", "g", 17, "RRS"), ("B", "B", "q", 17, "SSS"), ("L", "L", "q", 9, "RSR")), "L"),
        ((("B", "B", "q", 9, "SSR"), ("B", "L", "g", 9, "RRR"), ("B", "L", "g", 9, "SSS")), "B"),
    ],
    ids=["one kept", "first and last", "neighbours"],
)
def test_choices_of_lowered_networks_add_up(lowered_prices, layers, norm):
    """Exchanges exactly: shared phases, gains between layer norms, and ends that merge."""
    table, config = lowered_prices
    architecture = Architecture(
        layers=tuple(chosen(*layer) for layer in layers),
        norm=NormForm.LAYER if norm == "L" else NormForm.BATCH,
    )
    plan = read_reference(EXAMPLES[0]).plan
    program = lower_with_plan(plan, config, architecture, choose_engine(DEALER))
    costs = stage_costs(program, DEALER, images=LEAST_RUNS, reveal=Reveal.CLASS)
    counted = sum(costs.values(), Cost())
    priced = table.price(architecture)
    assert priced.exchanges == counted.exchanges
    assert priced.sent_bytes == pytest.approx(counted.sent_bytes, rel=0.02)

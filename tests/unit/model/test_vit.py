"""The model against the NumPy reference, for every kind, form and granularity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import Activation, BlockForm
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.vit import Attention, Embed, ViT
from tests import reference
from tests.marks import mostly_long
from tests.models import ENDS, perturbed_parameters, random_images, rows_of_every_kind, small_config
from tests.tolerances import F32, assert_close

K = table
TOKENS = small_config().tokens


def run(config, architecture, parameters, images, dtype=jnp.float32):
    return jax.jit(ViT(config, architecture, dtype=dtype).apply)({"params": parameters}, images)


def check(config, architecture):
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, batch=2)
    logits, _ = run(config, architecture, parameters, images)
    assert_close(logits, reference.vit(images, config, architecture, parameters), F32)


def uniform(config, kind=K.SOFTMAX, mlp=MlpForm.ACTIVATED):
    return Architecture.uniform(kind, depth=config.depth, heads=config.heads, mlp=mlp)


@pytest.mark.parametrize("kind", K.KINDS.values(), ids=str)
@pytest.mark.parametrize("block", BlockForm)
def test_every_kind(kind, block):
    config = small_config(block=block, attention_eps=1e-5, xnorm_eps=0.1)
    check(config, uniform(config, kind))


@pytest.mark.parametrize("activation", Activation)
def test_every_activation(activation):
    config = small_config(activation=activation, qkv_bias=True)
    check(config, uniform(config))


@pytest.mark.parametrize("end", ENDS)
def test_every_end(end):
    config = small_config(**ENDS[end])
    check(config, uniform(config))


@pytest.mark.parametrize("form", MlpForm)
def test_every_mlp_form(form):
    config = small_config()
    check(config, uniform(config, mlp=form))


def test_all_kinds_mixed_over_heads_rows_and_tokens():
    config = small_config()
    first, second, third = rows_of_every_kind(TOKENS)
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(TOKENS))
    check(
        config,
        Architecture(
            layers=(
                LayerArchitecture(heads=(first, second, third), mlp=forms),
                LayerArchitecture(heads=(third, K.RELU_SOFTMAX, tuple(reversed(third)))),
            )
        ),
    )


def test_tolerance_has_teeth():
    config = small_config()
    architecture = uniform(config, K.RELU_SOFTMAX)
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, batch=2)
    logits = reference.vit(images, config, architecture, parameters)
    moved = jax.tree.map(np.copy, parameters)
    moved["blocks_1"]["attention"]["qkv"]["kernel"][0, 0] += 0.01
    with pytest.raises(AssertionError):
        assert_close(reference.vit(images, config, architecture, moved), logits, F32)


def test_intermediates_have_names_and_shapes():
    config = small_config()
    layers = (LayerArchitecture(heads=(K.SOFTMAX, K.SCALING, K.SOFTMAX)),) * 2
    architecture = Architecture(layers=layers)
    parameters = perturbed_parameters(config, architecture)
    _, named = run(config, architecture, parameters, random_images(config, 5))
    assert named["features"].shape == (5, TOKENS, config.width)
    assert len(named["blocks"]) == config.depth
    block = named["blocks"][0]
    assert block["attention"].shape == block["output"].shape == (5, TOKENS, config.width)
    # scaling heads run in linear order, and so form no scores
    assert {name: x.shape for name, x in block["scores"].items()} == {
        "softmax/heads=0,2": (5, 2, TOKENS, TOKENS)
    }


def has_shape(architecture, shape):
    """Whether a tensor of some shape appears in the traced model."""
    config = small_config()
    program = jax.make_jaxpr(ViT(config, architecture).apply)(
        {"params": perturbed_parameters(config, architecture)}, random_images(config, 2)
    )
    return f"{','.join(map(str, shape))}]" in str(program)


def test_scaling_forms_no_quadratic_product():
    config = small_config()
    assert has_shape(uniform(config, K.SOFTMAX), (TOKENS, TOKENS))
    assert not has_shape(uniform(config, K.SCALING), (TOKENS, TOKENS))
    assert not has_shape(uniform(config, K.XNORM), (TOKENS, TOKENS))


def test_fused_layer_has_no_hidden_tokens():
    config = small_config()
    hidden = (2, TOKENS, config.hidden)
    assert has_shape(uniform(config, mlp=MlpForm.LINEAR), hidden)
    assert not has_shape(uniform(config, mlp=MlpForm.FUSED), hidden)


def test_training_differs_from_evaluation_only_by_chance():
    config = small_config(attention_dropout=0.2, dropout=0.1, stochastic_depth=0.3)
    architecture = uniform(config, K.SCALING)
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, batch=3)

    @jax.jit
    def train(seed):
        rngs = {"dropout": jax.random.key(seed)}
        model = ViT(config, architecture)
        return model.apply({"params": parameters}, images, train=True, rngs=rngs)[0]

    assert np.array_equal(train(0), train(0))
    assert not np.allclose(train(0), train(1), atol=1e-3)


def branches_kept(train):
    """For each layer and image, what its attention's branch was multiplied by."""
    config = small_config(depth=3, stochastic_depth=0.4, block=BlockForm.PRE)
    architecture = uniform(config, K.SCALING)
    parameters = perturbed_parameters(config, architecture)
    for index in range(config.depth):  # the MLP's branch adds nothing
        down = parameters[f"blocks_{index}"]["mlp"]["down"]
        down.update({name: np.zeros_like(leaf) for name, leaf in down.items()})
    parameters = jax.tree.map(jnp.asarray, parameters)
    images = random_images(config, batch=1000)
    embed = Embed(config).apply({"params": parameters["embed"]}, images)
    _, named = ViT(config, architecture).apply(
        {"params": parameters}, images, train=train, rngs={"dropout": jax.random.key(5)}
    )
    factors, before = [], np.asarray(embed)
    for block in named["blocks"]:
        after, branch = np.asarray(block["output"]), np.asarray(block["attention"])
        largest = np.abs(branch).reshape(len(branch), -1).argmax(axis=1)
        added = (after - before).reshape(len(branch), -1)
        own = branch.reshape(len(branch), -1)
        rows = np.arange(len(branch))
        factors.append(added[rows, largest] / own[rows, largest])
        before = after
    return np.array(factors)


def test_stochastic_depth_rises_from_layer_to_layer_and_rests_in_evaluation():
    """Layer l is skipped at `rate l / (depth - 1)`, and what stays is scaled to keep the mean."""
    factors = branches_kept(train=True)
    for layer, rate in enumerate((0.0, 0.2, 0.4)):
        skipped = np.abs(factors[layer]) < 1e-3
        # 1,000 draws: four standard deviations of the share are at most 0.062
        assert abs(skipped.mean() - rate) <= 4 * np.sqrt(rate * (1 - rate) / 1000)
        np.testing.assert_allclose(factors[layer][~skipped], 1 / (1 - rate), rtol=1e-3)
    np.testing.assert_allclose(branches_kept(train=False), 1.0, rtol=1e-3)


@pytest.mark.parametrize("mask", [(1, 1, 1), (1, 0, 1), (0, 0, 1)])
def test_pruned_heads_leave_the_sum_of_the_others(mask):
    """MHA = sum z Att: a head whose rows of the projection are zero is not there."""
    config = small_config()
    architecture = uniform(config, K.RELU_SOFTMAX)
    own = perturbed_parameters(config, architecture)["blocks_0"]["attention"]
    kernel = own["proj"]["kernel"].reshape(config.heads, config.head_dim, config.width)
    masked = (kernel * np.reshape(mask, (-1, 1, 1))).reshape(config.width, config.width)
    x = np.random.default_rng(3).standard_normal((2, config.tokens, config.width))
    found, _ = Attention(config, architecture.layers[0]).apply(
        {"params": jax.tree.map(jnp.asarray, {**own, "proj": {**own["proj"], "kernel": masked}})},
        jnp.asarray(x, jnp.float32),
        train=False,
    )
    qkv = (x @ own["qkv"]["kernel"]).reshape(2, config.tokens, 3, config.heads, config.head_dim)
    wanted = np.broadcast_to(own["proj"]["bias"].astype(np.float64), found.shape).copy()
    for head in np.flatnonzero(mask):
        q, k, v = (qkv[:, :, part, head] for part in range(3))
        scores = np.maximum(q @ k.transpose(0, 2, 1) / np.sqrt(config.head_dim), 0)
        weights = scores / (scores.sum(axis=-1, keepdims=True) + config.attention_eps)
        wanted += weights @ v @ kernel[head]
    assert_close(found, wanted, F32)


def test_dropout_keeps_the_mean_and_the_rate():
    from mpcvit.model.layers import dropout

    x = dropout(jax.random.key(3), jnp.ones((400, 500)), 0.1)
    # 200,000 draws: five standard deviations of the share are 0.0034
    assert abs(float((x == 0).mean()) - 0.1) < 0.0034
    assert abs(float(x.mean()) - 1) < 0.004


def test_every_block_starts_from_its_own_values():
    config = small_config()
    from mpcvit.model.vit import init_parameters

    parameters = init_parameters(config, uniform(config), seed=0)
    first, second = (
        parameters[f"blocks_{index}"]["attention"]["qkv"]["kernel"] for index in range(2)
    )
    assert not np.allclose(first, second)


def test_foreign_architecture_is_refused():
    config = small_config()
    architecture = Architecture.uniform(K.SOFTMAX, depth=2, heads=5)
    with pytest.raises(UserError, match="has 5 heads, but the model has 3"):
        ViT(config, architecture).init(jax.random.key(0), random_images(config, 1))


@pytest.mark.parametrize("kind", mostly_long(K.KINDS.values(), K.SOFTMAX, K.XNORM))
def test_bfloat16_stays_near_float32(kind):
    config = small_config(attention_eps=1e-5)
    architecture = uniform(config, kind)
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, batch=2)
    exact, _ = run(config, architecture, parameters, images)
    half, _ = run(config, architecture, parameters, images, jnp.bfloat16)
    assert half.dtype == jnp.float32
    # 8 bits of mantissa over two layers
    assert_close(half, exact, 0.1)
    assert not np.array_equal(half, exact)

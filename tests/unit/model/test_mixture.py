"""A model under search: against the reference, and at both ends of alpha and beta."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.choices import (
    ActivationGranularity,
    Granularity,
    LayerMixture,
    Mixture,
)
from mpcvit.artifacts.config import BlockForm
from mpcvit.artifacts.forms import Activation, NormForm
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.vit import ViT
from tests import reference
from tests.models import perturbed_parameters, random_images, small_config
from tests.tolerances import F32, assert_close

K = table


def make_mixture(granularity, activation, kept=K.RELU_SOFTMAX, depth=2):
    layer = LayerMixture(
        kept=kept, replacement=K.SCALING, granularity=granularity, activation=activation
    )
    return Mixture(layers=(layer,) * depth)


def logits_of(config, architecture, parameters, images):
    return jax.jit(ViT(config, architecture).apply)({"params": parameters}, images)[0]


def set_choices(parameters, **values):
    """Give every alpha or beta a value, or values drawn from [0, 1]."""
    rng = np.random.default_rng(5)

    def change(path, leaf):
        name = path[-1].key
        if name not in ("alpha", "beta", "layer_share", "token_shares"):
            return leaf
        value = values.get(name)
        return np.full_like(leaf, value) if value is not None else rng.random(leaf.shape, "f4")

    return jax.tree_util.tree_map_with_path(change, parameters)


@pytest.mark.parametrize("activation", ActivationGranularity)
@pytest.mark.parametrize("granularity", Granularity)
def test_against_the_reference(granularity, activation):
    config = small_config()
    mixture = make_mixture(granularity, activation)
    parameters = set_choices(perturbed_parameters(config, mixture))
    images = random_images(config, 3)
    logits = logits_of(config, mixture, parameters, images)
    assert_close(logits, reference.vit(images, config, mixture, parameters), F32)


def make_full_mixture(depth=2):
    layer = LayerMixture(
        kept=K.RELU_SOFTMAX,
        replacement=K.SCALING,
        granularity=Granularity.HEAD,
        activation=ActivationGranularity.NONE,
        norm=True,
        quadratic=True,
        token_counts=(9, 5),
    )
    return Mixture(layers=(layer,) * depth)


@pytest.mark.parametrize("block", BlockForm)
def test_all_choices_against_the_reference(block):
    config = small_config(image_size=8, block=block)
    mixture = make_full_mixture()
    parameters = set_choices(perturbed_parameters(config, mixture))
    assert parameters["blocks_1"]["token_shares"].shape == (2,)
    assert parameters["norm"]["layer_share"].shape == ()
    images = random_images(config, 2)
    logits = logits_of(config, mixture, parameters, images)
    assert_close(logits, reference.vit(images, config, mixture, parameters), F32)


@pytest.mark.parametrize("kept", [True, False])
def test_ends_of_all_choices_are_plain_networks(kept):
    config = small_config(image_size=8)
    mixture, share = make_full_mixture(), float(kept)
    parameters = set_choices(
        perturbed_parameters(config, mixture),
        **{"alpha": share, "beta": share, "layer_share": share, "token_shares": 1.0},
    )
    images = random_images(config, 2)
    plain = Architecture.uniform(K.RELU_SOFTMAX if kept else K.SCALING, depth=2, heads=3)
    own = (
        config
        if kept
        else small_config(image_size=8, norm=NormForm.BATCH, activation=Activation.QUADRATIC)
    )
    expected = logits_of(own, plain, parameters, images)  # reads only what it has
    assert_close(logits_of(config, mixture, parameters, images), expected, F32)


def test_merged_tokens_are_those_of_a_shorter_network():
    """Where all tokens stand for means, a layer's output is the same for those it merged."""
    config, mixture = small_config(image_size=8), make_full_mixture(depth=2)
    parameters = set_choices(perturbed_parameters(config, mixture), token_shares=0.0)
    _, named = jax.jit(ViT(config, mixture).apply)({"params": parameters}, random_images(config, 2))
    tokens = np.asarray(named["blocks"][-1]["output"])[:, 1:].reshape(2, 4, 4, -1)
    assert_close(tokens, np.repeat(np.repeat(tokens[:, ::2, ::2], 2, axis=1), 2, axis=2), F32)
    assert not np.allclose(tokens[:, 0, 0], tokens[:, 2, 2], atol=1e-2)


def test_any_pair_of_kinds_mixes():
    config = small_config()
    mixture = make_mixture(Granularity.HEAD, ActivationGranularity.NONE, kept=K.XNORM)
    parameters = set_choices(perturbed_parameters(config, mixture))
    images = random_images(config, 2)
    logits = logits_of(config, mixture, parameters, images)
    assert_close(logits, reference.vit(images, config, mixture, parameters), F32)


@pytest.mark.parametrize(
    ("alpha", "beta", "kind", "form"),
    [(1, 1, K.RELU_SOFTMAX, MlpForm.ACTIVATED), (0, 0, K.SCALING, MlpForm.LINEAR)],
)
def test_ends_of_alpha_and_beta_are_plain_networks(alpha, beta, kind, form):
    config = small_config()
    mixture = make_mixture(Granularity.ROW, ActivationGranularity.TOKEN)
    parameters = set_choices(perturbed_parameters(config, mixture), alpha=alpha, beta=beta)
    images = random_images(config, 2)
    mixed = logits_of(config, mixture, parameters, images)
    plain = Architecture.uniform(kind, depth=2, heads=3, mlp=form)
    bare = jax.tree.map(lambda leaf: leaf, parameters)
    for index in range(2):
        del bare[f"blocks_{index}"]["attention"]["alpha"], bare[f"blocks_{index}"]["mlp"]["beta"]
    expected = logits_of(config, plain, bare, images)
    assert_close(mixed, expected, F32)


def test_alpha_and_beta_begin_at_one_with_one_number_per_choice():
    config = small_config()
    for granularity, shape in ((Granularity.LAYER, (1, 1)), (Granularity.ROW, (3, 10))):
        mixture = make_mixture(granularity, ActivationGranularity.TOKEN)
        variables = ViT(config, mixture).init(jax.random.key(0), random_images(config, 1))
        block = variables["params"]["blocks_0"]
        assert block["attention"]["alpha"].shape == shape
        assert block["mlp"]["beta"].shape == (10,)
        assert float(block["attention"]["alpha"].min()) == float(block["mlp"]["beta"].min()) == 1
    mixture = make_mixture(Granularity.HEAD, ActivationGranularity.NONE, depth=3)
    with pytest.raises(UserError, match="3 layers, but the model has 2"):
        ViT(config, mixture).init(jax.random.key(0), random_images(config, 1))


def test_linear_norm_against_the_reference():
    config = small_config(norm=NormForm.LINEAR)
    architecture = Architecture.uniform(K.THE_X, depth=2, heads=3)
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, 2)
    logits = logits_of(config, architecture, parameters, images)
    assert_close(logits, reference.vit(images, config, architecture, parameters), F32)
    doubled = logits_of(config, architecture, parameters, 2 * images)
    assert not jnp.allclose(doubled, logits, rtol=0.1)

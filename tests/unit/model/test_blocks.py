"""Batch norms, learnt quadratics, merged tokens, and narrow queries and keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture
from mpcvit.artifacts.config import BlockForm, ModelConfig, Pooling
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.resolve import validate
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.layers import FAR, BatchNorm, Quadratic
from mpcvit.model.vit import ViT, init_parameters
from tests import reference
from tests.models import perturbed_parameters, random_images, small_checkpoint, small_config
from tests.tolerances import F32, assert_close

K = table
POLYNOMIAL = {
    "image_size": 8,
    "depth": 3,
    "norm": NormForm.BATCH,
    "activation": Activation.QUADRATIC,
}


def polynomial(**changes) -> ModelConfig:
    return small_config(**{**POLYNOMIAL, **changes})


def uniform(config, kind=K.SCALING):
    return Architecture.uniform(kind, depth=config.depth, heads=config.heads)


def logits_of(config, architecture, parameters, images, **options):
    run = jax.jit(lambda p, x: ViT(config, architecture).apply({"params": p}, x, **options))
    return run(parameters, images)[0]


def check(config, architecture):
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, batch=2)
    logits = logits_of(config, architecture, parameters, images)
    assert_close(logits, reference.vit(images, config, architecture, parameters), F32)


@pytest.mark.parametrize("block", BlockForm)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layer_norms": ("1.norm2", "norm")},
        {"clip": 0.7},
        {"layer_tokens": (17, 9, 5)},
        {"layer_tokens": (17, 17, 5)},
        {"layer_tokens": (16, 8, 4), "pooling": Pooling.MEAN},
        {"head_dim_qk": 2},
    ],
    ids=str,
)
def test_against_the_reference(block, changes):
    config = polynomial(block=block, **changes)
    check(config, uniform(config))


@pytest.mark.parametrize("kind", table.KINDS.values(), ids=str)
def test_every_kind_with_fewer_tokens_and_narrow_queries(kind):
    config = polynomial(
        activation=Activation.GELU, norm=NormForm.LAYER, layer_tokens=(17, 9, 9), head_dim_qk=3
    )
    check(config, uniform(config, kind))


def test_an_architecture_chooses_for_each_layer():
    config = polynomial(norm=NormForm.LAYER, activation=Activation.GELU)
    chosen = FormChoice(
        norm1=NormForm.BATCH, activation=Activation.QUADRATIC, tokens=9, norm2=NormForm.LAYER
    )
    rows = (K.SCALING,) * 4 + (K.SOFTMAX,) * 5
    architecture = Architecture(
        layers=(
            LayerArchitecture(heads=(K.SOFTMAX,) * 3),
            LayerArchitecture(heads=(K.SCALING, rows, K.SCALING), form=chosen),
            LayerArchitecture(heads=(rows,) * 3, form=FormChoice(norm2=NormForm.BATCH)),
        ),
        norm=NormForm.BATCH,
    )
    check(config, architecture)
    shapes = jax.eval_shape(lambda: init_parameters(config, architecture, 0))
    with_statistics = [
        f"{index}.{name}"
        for index in range(3)
        for name in ("norm1", "norm2")
        if "variance" in shapes[f"blocks_{index}"][name]
    ]
    assert with_statistics == ["1.norm1", "2.norm2"]
    assert "variance" in shapes["norm"]


def test_training_takes_the_statistics_of_its_images():
    x = jnp.asarray(3 + 2 * np.random.default_rng(0).standard_normal((5, 7, 11)), jnp.float32)
    norm = BatchNorm(1e-5)
    parameters = norm.init(jax.random.key(0), x)["params"]
    parameters = {**parameters, "scale": jnp.full(11, 1.5), "bias": jnp.full(11, -0.5)}
    y, found = norm.apply({"params": parameters}, x, train=True, mutable=["statistics"])
    exact = np.asarray(x, np.float64)
    mean, variance = exact.mean(axis=(0, 1)), exact.var(axis=(0, 1))
    assert_close(y, (exact - mean) / np.sqrt(variance + 1e-5) * 1.5 - 0.5, F32)
    assert_close(found["statistics"]["mean"], mean, F32)
    assert_close(found["statistics"]["variance"], variance, F32)
    fixed = {**parameters, **found["statistics"]}
    assert_close(norm.apply({"params": fixed}, x), y, F32)


def test_training_measures_how_far_values_lie():
    x = np.random.default_rng(0).standard_normal((5, 7, 11)).astype(np.float32)
    x[2, 3, 4], x[4, 0, 1] = 30, -20
    x, norm = jnp.asarray(x), BatchNorm(1e-5)
    parameters = norm.init(jax.random.key(0), x)["params"]
    y, found = norm.apply({"params": parameters}, x, train=True, mutable=["outliers"])
    beyond = np.maximum(np.abs(np.asarray(y, np.float64)) - FAR, 0)
    assert np.count_nonzero(beyond) == 2
    assert_close(found["outliers"]["square"], (beyond**2).mean(), F32)
    assert "outliers" not in norm.apply({"params": parameters}, x, mutable=["outliers"])[1]


def test_no_gradient_reaches_the_statistics():
    config = polynomial(layer_norms=("1.norm2",))
    architecture = uniform(config)
    parameters = jax.tree.map(jnp.asarray, perturbed_parameters(config, architecture))
    images = random_images(config, batch=3)

    @jax.jit
    @jax.grad
    def gradient_of(parameters):
        return ViT(config, architecture).apply({"params": parameters}, images, train=True)[0].sum()

    leaves = jax.tree_util.tree_flatten_with_path(gradient_of(parameters))[0]
    names = {"mean", "variance"}
    assert sum(path[-1].key in names for path, _ in leaves) == 2 * 6
    for path, leaf in leaves:
        assert bool(jnp.any(leaf != 0)) != (path[-1].key in names), path


def test_a_layer_norm_turns_into_a_batch_norm():
    """The share decides: at one the network is that of layer norms, at zero of batch norms."""
    config = polynomial()
    layered = polynomial(norm=NormForm.LAYER)
    architecture = uniform(config)
    parameters = perturbed_parameters(config, architecture)
    images = random_images(config, batch=4)

    def trained(config, share):
        return logits_of(config, architecture, parameters, images, train=True, layer_share=share)

    assert_close(trained(config, jnp.ones(())), trained(layered, None), F32)
    assert_close(trained(config, jnp.zeros(())), trained(config, None), F32)
    half = trained(config, jnp.full((), 0.5))
    assert not np.allclose(half, trained(config, None), atol=1e-2)
    assert not np.allclose(half, trained(layered, None), atol=1e-2)


def test_a_quadratic_begins_near_gelu():
    x = jnp.linspace(-0.5, 0.5, 101)[None]
    module = Quadratic()
    y = module.apply(module.init(jax.random.key(0), x), x)
    assert float(jnp.abs(y - jax.nn.gelu(x, approximate=False)).max()) < 0.05


def test_a_clip_bounds_any_image():
    """Without one a picture of extreme contrast runs away: every block squares it again."""
    images = 1e3 * random_images(polynomial(), batch=2)
    free, clipped = polynomial(), polynomial(clip=6.0)
    architecture = uniform(free)
    parameters = perturbed_parameters(free, architecture)
    assert not float(jnp.abs(logits_of(free, architecture, parameters, images)).max()) < 1e6
    assert float(jnp.abs(logits_of(clipped, architecture, parameters, images)).max()) < 1e3


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_statistics_that_are_no_numbers_are_refused_by_name(tmp_path, value):
    config = polynomial()
    checkpoint = small_checkpoint(config, uniform(config))
    path = tmp_path / "model.safetensors"
    checkpoint.save(path)
    type(checkpoint).load(path)
    checkpoint.parameters["blocks_1"]["norm2"]["variance"][3] = value
    checkpoint.save(path)
    with pytest.raises(UserError, match=r"model.safetensors: .*blocks_1\.norm2\.variance"):
        type(checkpoint).load(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_norms": ("1.norm3",)}, r"layer_norms.*names no norm '1.norm3'.*1.norm[12]"),
        ({"layer_tokens": (17, 9)}, "layer_tokens.*has 2 entries, but model.depth is 3"),
        ({"layer_tokens": (17, 8, 8)}, "layer_tokens.*from 17 to 8 tokens.* 17, 9, 5, 3, 2"),
        ({"layer_tokens": (9, 17, 9)}, "layer_tokens.*from 9 to 17 tokens"),
        ({"head_dim_qk": -1}, "head_dim_qk"),
        ({"clip": -1.0}, "clip"),
        ({"clip": 6.0, "norm": NormForm.LAYER}, "clip.*model.norm"),
        ({"layer_norms": ("norm",), "norm": NormForm.LAYER}, "layer_norms.*model.norm"),
    ],
)
def test_what_does_not_fit_is_refused_by_key(changes, message):
    with pytest.raises(UserError, match=message):
        polynomial(**changes)


def test_an_architecture_that_cannot_be_merged_is_refused():
    config = polynomial()
    layers = list(uniform(config).layers)
    layers[1] = LayerArchitecture(heads=(K.SCALING,) * 3, form=FormChoice(tokens=7))
    with pytest.raises(UserError, match="layer 1 of the architecture cannot go from 17 to 7"):
        validate(config, Architecture(layers=tuple(layers)))

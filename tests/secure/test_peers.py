"""`mpcvit bench peers`: the network that CrypTen runs, and rows where it is not installed."""

import csv
import math
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from mpcvit.artifacts.config import BlockForm, Pooling, load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.bench import peers
from mpcvit.bench.crypten_party import Network, cut_patches
from mpcvit.bench.networks import paper_networks, random_checkpoint, random_images
from mpcvit.classifier import Classifier
from mpcvit.model.vit import ViT
from tests.command import invoke
from tests.configs import TINY
from tests.marks import mostly_long


class Plain:
    """Has the methods of CrypTen's tensors that the network uses, on plain numbers."""

    def __init__(self, array):
        self.array = np.asarray(array, np.float64)

    def __getattr__(self, name):
        functions = {
            "erf": jax.scipy.special.erf,
            "relu": jax.nn.relu,
            "reciprocal": lambda x: 1 / x,
            "inv_sqrt": lambda x: 1 / np.sqrt(x),
            "square": np.square,
        }
        return lambda: Plain(functions[name](self.array))

    def __getitem__(self, key):
        return Plain(self.array[key])

    def __add__(self, other):
        return Plain(self.array + _bare(other))

    def __sub__(self, other):
        return Plain(self.array - _bare(other))

    def __mul__(self, other):
        return Plain(self.array * _bare(other))

    def matmul(self, other):
        return Plain(self.array @ other.array)

    def mean(self, axis, keepdim):
        return Plain(self.array.mean(axis, keepdims=keepdim))

    def sum(self, axis, keepdim):
        return Plain(self.array.sum(axis, keepdims=keepdim))

    def softmax(self, axis):
        return Plain(jax.nn.softmax(self.array, axis=axis))

    def transpose(self, first, second):
        return Plain(self.array.swapaxes(first, second))

    def reshape(self, *shape):
        return Plain(self.array.reshape(shape))


def _bare(value):
    return value.array if isinstance(value, Plain) else value


class _Unchanged:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize("attention", mostly_long(peers.NETWORKS, "relu_softmax"))
@pytest.mark.parametrize(
    "changes",
    [{}, {"block": BlockForm.PRE, "qkv_bias": True, "pooling": Pooling.MEAN}],
    ids=["lite", "pre"],
)
def test_crypten_computes_the_same_network(attention, changes):
    model = replace(load_config(TINY).model, depth=2, channels=3, **changes)
    checkpoint = random_checkpoint(model, paper_networks(model)[attention])
    rng = np.random.default_rng(1)
    parameters = jax.tree_util.tree_map(
        lambda array: jnp.asarray(array + 0.1 * rng.standard_normal(array.shape), jnp.float32),
        checkpoint.parameters,
    )
    image = rng.standard_normal((model.image_size, model.image_size, 3)).astype(np.float32)
    config = SimpleNamespace(cfg=SimpleNamespace(temp_override=lambda _: _Unchanged()))
    crypten = SimpleNamespace(
        cat=lambda parts: Plain(np.concatenate([part.array for part in parts])), config=config
    )
    shared = {name: Plain(array) for name, array in flatten_dict(parameters, sep="/").items()}
    found = Network(crypten, model, attention, shared).logits(Plain(cut_patches(model, image)))
    network = ViT(model, checkpoint.architecture)
    expected, _ = network.apply({"params": parameters}, jnp.asarray(image)[None], train=False)
    assert np.abs(found.array - np.asarray(expected)).max() < 1e-4 * math.sqrt(model.width)


def test_without_crypten_the_other_rows_come_and_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "is_crypten_there", lambda: False)
    asked = []

    def run(model, images, profile, **options):
        asked.append((profile, options))
        return real_run(model, images, profile, simulate=True, **{**options, "insecure": False})

    real_run = peers.run
    monkeypatch.setattr(peers, "run", run)
    out = tmp_path / "peers.csv"
    result = invoke("bench", "peers", TINY, "--networks", "scaling", "--out", out)
    assert "pip install --no-deps crypten" in result.stderr
    assert "the dealer to collude with neither party" in result.stdout
    ours, spu = csv.DictReader(out.read_text().splitlines())
    assert (ours["engine"], spu["engine"]) == (peers.MPCVIT, peers.SPU)
    assert float(spu["s_of_spu"]) == float(spu["rounds_of_spu"]) == 1.0
    assert float(ours["rounds_of_spu"]) < 0.5
    assert float(spu["logit_error"]) < 0.01
    assert ours["logit_error"] == ""
    # a program brings a ring of its own
    assert [(row["ring_bits"], row["fraction_bits"]) for row in (ours, spu)] == [
        ("128", "26"),
        ("64", "18"),
    ]
    assert "INSECURE" in spu["trusted"]
    (lowered, _), (plain, options) = asked
    assert lowered.network == plain.network == load_profile("semi2k-wan").network
    assert options["insecure"]
    refused = invoke("bench", "peers", TINY, "--networks", "the_x", code=2)
    assert "there is no network 'the_x'" in refused.stderr


@pytest.mark.skipif(not peers.is_crypten_there(), reason="needs PyTorch and CrypTen")
def test_crypten_itself():
    model = replace(load_config(TINY).model, depth=1)
    checkpoint = random_checkpoint(model, paper_networks(model)["scaling"])
    image = random_images(model)
    network = replace(load_profile("semi2k-wan").network, round_trip_ms=1.0)
    outcome = peers.run_crypten(checkpoint, image, "scaling", network)
    assert outcome.exchanges > 50
    classifier = Classifier(checkpoint)
    expected = classifier(classifier.preprocess(list(image)))
    assert np.abs(np.asarray(outcome.logits) - expected).max() < 0.01

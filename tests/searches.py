"""Results of searches, made up."""

from dataclasses import replace

import numpy as np

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.choices import Choice, SearchConfig
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.forms import Activation
from mpcvit.artifacts.latency import WAN, ChoiceCost, Cost, LatencyTable, LayerCosts, NormCosts
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.artifacts.search import SearchResult
from mpcvit.cost.estimate import estimate
from mpcvit.kinds.table import RELU_SOFTMAX, SCALING

EVERY_CHOICE = tuple(Choice)
MODEL = ModelConfig(image_size=4, patch_size=2, classes=3, depth=3, heads=3, width=12)
HERE = Environment(created="", commit="", hardware="")
ALPHA = ((0.9, 0.1, 0.5), (0.8, 0.7, 0.6), (0.2, 0.3, 0.4))


def make_result(alpha, beta=(), model=MODEL, **search):
    return SearchResult(
        model=model,
        search=SearchConfig(**search),
        alpha=tuple(tuple(tuple(np.atleast_1d(row).tolist()) for row in layer) for layer in alpha),
        beta=beta,
        latency=estimate(model),
        provenance=Provenance(origin="searched", environment=HERE),
    )


def random_costs(model, seed=0, counts=(3,)):
    """Return prices of every choice as lowered networks have them, drawn at random."""
    rng = np.random.default_rng(seed)

    def cost(most):
        exchanges, kilobytes = rng.integers(1, most), rng.integers(1, 900)
        return Cost(exchanges=float(exchanges), sent_bytes=1e3 * kilobytes)

    def layer(tokens, is_last):
        return LayerCosts(
            attention={
                SCALING: ChoiceCost(),
                RELU_SOFTMAX: ChoiceCost(shared=cost(20), per_unit=cost(2)),
            },
            mlp={MlpForm.ACTIVATED: ChoiceCost()},
            products=cost(9),
            norms=NormCosts(
                norm1=cost(6), norm2=cost(6), gain=cost(2), head=cost(6) if is_last else Cost()
            ),
            activation={Activation.QUADRATIC: Cost(), Activation.GELU: cost(5)},
            tokens=tokens,
        )

    layers = []
    for index in range(model.depth):
        whole, *fewer = (layer(own, index == model.depth - 1) for own in (model.tokens, *counts))
        layers.append(replace(whole, fewer=tuple(fewer)))
    return LatencyTable(
        source="drawn",
        network=WAN,
        heads=model.heads,
        tokens=model.tokens,
        layers=tuple(layers),
        rest=cost(9),
    )


def make_full_result(model, seed=0, counts=(3,)):
    """Return a search of every choice, with shares and prices drawn at random."""
    rng = np.random.default_rng(seed)

    def shares(*lengths):
        return tuple(tuple(rng.random(length).round(3).tolist()) for length in lengths)

    return SearchResult(
        model=model,
        search=SearchConfig(choices=EVERY_CHOICE, token_counts=counts),
        alpha=tuple(
            tuple((value,) for value in own) for own in shares(*[model.heads] * model.depth)
        ),
        beta=shares(*[1] * model.depth),
        norms=shares(*[2] * model.depth, 1),
        tokens=shares(*[len(counts)] * model.depth),
        latency=random_costs(model, seed, counts),
        provenance=Provenance(origin="searched", environment=HERE),
    )

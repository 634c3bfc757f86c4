"""Results of searches, made up."""

import numpy as np

from mpcvit.artifacts.config import ModelConfig, SearchConfig
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.artifacts.search import SearchResult
from mpcvit.cost.estimate import estimate

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

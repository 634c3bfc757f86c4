"""The networks of the paper's measurements, with random weights: cost does not depend on them."""

import math

import numpy as np

from mpcvit.arch import Architecture, AttentionKind, LayerArchitecture, MlpForm
from mpcvit.checkpoint import Checkpoint
from mpcvit.config import DataConfig, ModelConfig
from mpcvit.model.vit import init_parameters
from mpcvit.records import Environment, Provenance

RATIOS = (0.1, 0.3, 0.5, 0.7)


def random_checkpoint(model: ModelConfig, architecture: Architecture) -> Checkpoint:
    return Checkpoint(
        model=model,
        architecture=architecture,
        data=DataConfig(mean=(0.5,) * model.channels, std=(0.5,) * model.channels),
        classes=tuple(str(index) for index in range(model.classes)),
        parameters=init_parameters(model, architecture, seed=0),
        provenance=Provenance(origin="random weights", environment=Environment.here()),
    )


def random_images(model: ModelConfig, count: int = 1) -> np.ndarray:
    size = model.image_size
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, size, size, model.channels), np.uint8)


def paper_networks(model: ModelConfig) -> dict[str, Architecture]:
    """Every network that the paper gives a latency of, and both forms of MPCViT+."""

    def uniform(kind: AttentionKind) -> Architecture:
        return Architecture.uniform(kind, depth=model.depth, heads=model.heads)

    kinds = {
        "softmax": AttentionKind.SOFTMAX,
        "relu_softmax": AttentionKind.RELU_SOFTMAX,
        "scaling": AttentionKind.SCALING,
        "linformer": AttentionKind.LINFORMER,
        "mpcformer": AttentionKind.QUAD2,
        "the_x": AttentionKind.THE_X,
    }
    plus = {f"mpcvit-plus-{ratio}": mixed(model, ratio, without_gelu=0.5) for ratio in (0.3, 0.7)}
    return {
        **{name: uniform(kind) for name, kind in kinds.items()},
        **{f"mpcvit-{ratio}": mixed(model, ratio) for ratio in RATIOS},
        **plus,
    }


def mixed(model: ModelConfig, ratio: float, *, without_gelu: float = 0.0) -> Architecture:
    """ReLU softmax in a share of the heads, drawn at random, and scaling in the others.

    A share of each layer's tokens may drop GeLU for a fused linear with ReLU.
    """
    rng = np.random.default_rng(0)
    kept = np.zeros(model.depth * model.heads, bool)
    kept[rng.permutation(kept.size)[: math.ceil(round(ratio * kept.size, 9))]] = True
    layers = []
    for own in kept.reshape(model.depth, model.heads):
        dropped = set(rng.permutation(model.tokens)[: round(without_gelu * model.tokens)].tolist())
        forms = tuple(
            MlpForm.FUSED_RELU if token in dropped else MlpForm.ACTIVATED
            for token in range(model.tokens)
        )
        layers.append(
            LayerArchitecture(
                heads=tuple(
                    AttentionKind.RELU_SOFTMAX if keeps else AttentionKind.SCALING for keeps in own
                ),
                mlp=forms if dropped else MlpForm.ACTIVATED,
            )
        )
    return Architecture(layers=tuple(layers))

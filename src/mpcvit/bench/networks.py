"""The networks of the paper's measurements, with random weights: cost does not depend on them.

JAX is imported for weights alone, so that a shell can complete the names.
"""

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mpcvit.artifacts.architecture import (
    Architecture,
    LayerArchitecture,
    MlpChoice,
    MlpForm,
)
from mpcvit.artifacts.config import Activation, DataConfig, ModelConfig
from mpcvit.artifacts.forms import FormChoice, NormForm, grid_of
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.errors import UserError
from mpcvit.kinds.table import LINFORMER, QUAD2, RELU_SOFTMAX, SCALING, SOFTMAX, THE_X, Kind

if TYPE_CHECKING:
    from mpcvit.model.checkpoint import Checkpoint

RATIOS = (0.1, 0.3, 0.5, 0.7)
_ALSO_WITH_TANH = ("softmax", "relu_softmax", "scaling", "mpcvit-0.3", "mpcvit-0.7")


def random_checkpoint(model: ModelConfig, architecture: Architecture) -> "Checkpoint":
    from mpcvit.model.checkpoint import Checkpoint
    from mpcvit.model.vit import init_parameters

    return Checkpoint(
        model=model,
        architecture=architecture,
        data=DataConfig(mean=(0.5,) * model.channels, std=(0.5,) * model.channels),
        classes=tuple(str(index) for index in range(model.classes)),
        parameters=init_parameters(model, architecture, seed=0),
        provenance=Provenance(origin="random weights", environment=Environment.current()),
    )


def random_images(model: ModelConfig, count: int = 1) -> np.ndarray:
    size = model.image_size
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, size, size, model.channels), np.uint8)


def paper_networks(model: ModelConfig) -> dict[str, Architecture]:
    """Return every network that the paper gives a latency of, by name.

    `per-layer` has the same number of ReLU-softmax heads in each layer, as nearly as whole
    heads allow, and `softmax-scaling` mixes softmax with scaling. MPCViT+ drops GeLU in
    half of each layer's tokens, or in half of the layers; `no-relu` adds no ReLU there.
    """

    def uniform(kind: Kind) -> Architecture:
        return Architecture.uniform(kind, depth=model.depth, heads=model.heads)

    kinds = {
        "softmax": SOFTMAX,
        "relu_softmax": RELU_SOFTMAX,
        "scaling": SCALING,
        "linformer": LINFORMER,
        "mpcformer": QUAD2,
        "the_x": THE_X,
    }
    softmax: dict[str, Any] = {"kept": SOFTMAX}
    tokens: dict[str, Any] = {"without_gelu": 0.5}
    no_relu: dict[str, Any] = {**tokens, "form": MlpForm.FUSED}
    layers: dict[str, Any] = {"without_gelu": 0.5, "by_layer": True}
    return {
        **{name: uniform(kind) for name, kind in kinds.items()},
        **{f"mpcvit-{ratio}": mixed(model, ratio) for ratio in RATIOS},
        **{f"per-layer-{ratio}": _evenly_mixed(model, ratio) for ratio in RATIOS},
        **{f"softmax-scaling-{ratio}": mixed(model, ratio, **softmax) for ratio in RATIOS},
        **{f"mpcvit-plus-{ratio}": mixed(model, ratio, **tokens) for ratio in (0.3, 0.7)},
        **{f"mpcvit-plus-no-relu-{ratio}": mixed(model, ratio, **no_relu) for ratio in (0.3, 0.7)},
        **{f"mpcvit-plus-layer-{ratio}": mixed(model, ratio, **layers) for ratio in (0.3, 0.7)},
    }


def polynomial_network(model: ModelConfig) -> Architecture:
    """Return a network of sums and products alone, but for one layer norm.

    It has scaling attention, batch norms and learnt quadratics. The first third of the
    layers has all tokens, and the others a half and a quarter of the patches. The layer
    norm is the one before the MLP of the second layer, which bounds what comes after it.
    """
    side = model.image_size // model.patch_size
    layers = []
    for index in range(model.depth):
        patches = side**2 >> (3 * index // model.depth)
        if grid_of(side, patches) is None:
            raise UserError(f"{side} x {side} patches cannot be merged to {patches}")
        form = FormChoice(
            norm1=NormForm.BATCH,
            norm2=NormForm.LAYER if index == 1 else NormForm.BATCH,
            activation=Activation.QUADRATIC,
            tokens=model.tokens - side**2 + patches,
        )
        layers.append(LayerArchitecture(heads=(SCALING,) * model.heads, form=form))
    return Architecture(layers=tuple(layers), norm=NormForm.BATCH)


def networks_as_written(model: ModelConfig) -> dict[str, tuple[ModelConfig, Architecture]]:
    """Return the paper's networks with GeLU by erf, and some with GeLU by tanh too.

    Linformer also has the paper's other ratios of tokens, and `pruned` networks of ReLU
    softmax have one to three heads.
    """
    networks = paper_networks(model)
    tanh = replace(model, activation=Activation.GELU_TANH)
    return {
        **{name: (model, architecture) for name, architecture in networks.items()},
        **{
            f"linformer-{ratio}": (replace(model, linformer_ratio=ratio), networks["linformer"])
            for ratio in (0.3, 0.7)
        },
        **{f"pruned-{heads}": _pruned(model, heads) for heads in (1, 2, 3)},
        **{f"{name}-gelu_tanh": (tanh, networks[name]) for name in _ALSO_WITH_TANH},
    }


def _pruned(model: ModelConfig, heads: int) -> tuple[ModelConfig, Architecture]:
    """Return a ReLU-softmax network of fewer heads."""
    uniform = Architecture.uniform(RELU_SOFTMAX, depth=model.depth, heads=heads)
    return model.with_heads(heads), uniform


def mixed(
    model: ModelConfig,
    ratio: float,
    *,
    kept: Kind = RELU_SOFTMAX,
    without_gelu: float = 0.0,
    by_layer: bool = False,
    form: MlpForm = MlpForm.FUSED_RELU,
) -> Architecture:
    """Return a network with the kept kind in a share of the heads, and scaling in the others.

    Heads are drawn at random. A share of each layer's tokens, or of the layers,
    may drop GeLU for another form of the MLP.
    """
    rng = np.random.default_rng(0)
    keeps = np.zeros(model.depth * model.heads, bool)
    keeps[rng.permutation(keeps.size)[: _kept_heads(model, ratio)]] = True
    bare: list[int] = []
    if by_layer:
        bare = rng.permutation(model.depth)[: round(without_gelu * model.depth)].tolist()
    layers = []
    for index, own in enumerate(keeps.reshape(model.depth, model.heads)):
        if by_layer:
            mlp = form if index in bare else MlpForm.ACTIVATED
        else:
            mlp = _drop_tokens(rng, model.tokens, without_gelu, form)
        heads = tuple(kept if keeps_it else SCALING for keeps_it in own)
        layers.append(LayerArchitecture(heads=heads, mlp=mlp))
    return Architecture(layers=tuple(layers))


def _kept_heads(model: ModelConfig, ratio: float) -> int:
    return math.ceil(round(ratio * model.depth * model.heads, 9))


def _evenly_mixed(model: ModelConfig, ratio: float) -> Architecture:
    """Return a network whose layers keep equally many heads; the first ones keep the odd ones."""
    whole, odd = divmod(_kept_heads(model, ratio), model.depth)
    kept = (whole + (index < odd) for index in range(model.depth))
    return Architecture(
        layers=tuple(
            LayerArchitecture(heads=(RELU_SOFTMAX,) * own + (SCALING,) * (model.heads - own))
            for own in kept
        )
    )


def _drop_tokens(rng: np.random.Generator, tokens: int, share: float, form: MlpForm) -> MlpChoice:
    """Return an MLP in which a share of the tokens, drawn at random, drops GeLU."""
    dropped = set(rng.permutation(tokens)[: round(share * tokens)].tolist())
    if not dropped:
        return MlpForm.ACTIVATED
    return tuple(form if token in dropped else MlpForm.ACTIVATED for token in range(tokens))

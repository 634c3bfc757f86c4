"""Two independent forward passes, and checkpoints that differ a little from golden ones."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import mpcvit
from mpcvit.arch import AttentionKind, MlpForm
from mpcvit.config import Activation, BlockForm, ModelConfig, Pooling
from mpcvit.foreign import ForeignModel
from mpcvit.foreign.read import open_source
from mpcvit.model.vit import ViT

GOLDEN = Path(__file__).parents[2] / "golden" / "foreign"

Forward = Callable[[ForeignModel, np.ndarray], np.ndarray]


@pytest.fixture
def golden() -> Path:
    return GOLDEN


@pytest.fixture(params=["numpy", "flax"])
def forward(request: pytest.FixtureRequest) -> Forward:
    """Logits of a foreign model: by plain float64 NumPy, and by this project's network."""
    return {"numpy": numpy_forward, "flax": flax_forward}[request.param]


@pytest.fixture
def flatten() -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Turn a tree of parameters into a dictionary by path."""

    def flatten(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in tree.items():
            is_branch = isinstance(value, Mapping)
            flat |= flatten(value, f"{path}{name}/") if is_branch else {f"{path}{name}": value}
        return flat

    return flatten


@pytest.fixture
def edited(tmp_path: Path) -> Callable[..., Path]:
    """Copy a golden case as a folder, with tensors replaced, added or (None) removed."""

    def edit(
        case: str,
        tensors: Mapping[str, np.ndarray | None] | None = None,
        config: Mapping[str, Any] | None = None,
        preprocessing: Mapping[str, Any] | None = None,
    ) -> Path:
        source = GOLDEN / case
        folder = tmp_path / "edited"
        folder.mkdir()
        with open_source(source) as opened:
            arrays = {name: tensor.read() for name, tensor in opened.tensors.items()}
        merged = {**arrays, **(tensors or {})}
        kept = {name: array for name, array in merged.items() if array is not None}
        save_file({name: np.ascontiguousarray(array) for name, array in kept.items()}, folder / "x")
        (folder / "x").rename(folder / "model.safetensors")
        beside = {"config.json": config, "preprocessor_config.json": preprocessing}
        for name, changes in beside.items():
            if (source / name).is_file():
                shutil.copy(source / name, folder / name)
            if changes is not None:
                path = folder / name
                document = json.loads(path.read_text()) if path.exists() else {}
                path.write_text(json.dumps({**document, **changes}))
        return folder

    return edit


def flax_forward(foreign: ForeignModel, images: np.ndarray) -> np.ndarray:
    network = jax.jit(ViT(foreign.model, foreign.architecture).apply)
    return np.asarray(network({"params": foreign.parameters}, jnp.asarray(images))[0])


def numpy_forward(foreign: ForeignModel, images: np.ndarray) -> np.ndarray:
    model, parameters = foreign.model, foreign.parameters
    x = _embed(model, parameters["embed"], images.astype(np.float64))
    for index, layer in enumerate(foreign.architecture.layers):
        own = parameters[f"blocks_{index}"]
        x = x + _attention(model, layer.heads, own["attention"], _norm(model, own["norm1"], x))
        if model.block is BlockForm.LITE:
            x = _norm(model, own["norm2"], x)
            x = x + _mlp(model, layer.mlp, own["mlp"], x)
        else:
            x = x + _mlp(model, layer.mlp, own["mlp"], _norm(model, own["norm2"], x))
    x = _norm(model, parameters["norm"], x)
    return _linear(parameters["head"], x[:, 0] if model.pooling is Pooling.CLASS else x.mean(1))


def _embed(model: ModelConfig, own: Mapping[str, Any], images: np.ndarray) -> np.ndarray:
    patch, side = model.patch_size, model.image_size // model.patch_size
    corners = [(patch * row, patch * column) for row in range(side) for column in range(side)]
    cut = [images[:, y : y + patch, x : x + patch].reshape(len(images), -1) for y, x in corners]
    tokens = [_linear(own["patch"], piece) for piece in cut]
    if model.pooling is Pooling.CLASS:
        tokens.insert(0, np.broadcast_to(own["class_token"], tokens[0].shape))
    return np.stack(tokens, axis=1) + own["position"]


def _attention(
    model: ModelConfig, choices: tuple[Any, ...], own: Mapping[str, Any], x: np.ndarray
) -> np.ndarray:
    q, k, v = np.split(_linear(own["qkv"], x), 3, axis=-1)
    outputs = []
    for head, choice in enumerate(choices):
        part = slice(head * model.head_dim, (head + 1) * model.head_dim)
        scores = q[..., part] @ k[..., part].swapaxes(1, 2) / math.sqrt(model.head_dim)
        rows = choice if isinstance(choice, tuple) else (choice,) * model.tokens
        weights = [_weigh(kind, scores[:, row], model) for row, kind in enumerate(rows)]
        outputs.append(np.stack(weights, axis=1) @ v[..., part])
    return _linear(own["proj"], np.concatenate(outputs, axis=-1))


def _weigh(kind: AttentionKind, scores: np.ndarray, model: ModelConfig) -> np.ndarray:
    if kind is AttentionKind.SCALING:
        return scores / scores.shape[-1]
    if kind is AttentionKind.RELU_SOFTMAX:
        positive = np.maximum(scores, 0)
        return positive / (positive.sum(-1, keepdims=True) + model.attention_eps)
    assert kind is AttentionKind.SOFTMAX
    powers = np.exp(scores)
    return powers / powers.sum(-1, keepdims=True)


def _mlp(model: ModelConfig, choice: Any, own: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    forms = choice if isinstance(choice, tuple) else (choice,) * model.tokens
    outputs = []
    for token, form in enumerate(forms):
        hidden = _linear(own["up"], x[:, token])
        if form is MlpForm.ACTIVATED:
            hidden = _activate(model.activation, hidden)
        output = _linear(own["down"], hidden)
        outputs.append(np.maximum(output, 0) if form is MlpForm.LINEAR_RELU else output)
    return np.stack(outputs, axis=1)


def _activate(activation: Activation, x: np.ndarray) -> np.ndarray:
    match activation:
        case Activation.GELU:
            return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
        case Activation.GELU_TANH:
            return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case Activation.GELU_SIGMOID:
            return x / (1 + np.exp(-1.702 * x))
        case _:
            return np.maximum(x, 0)


def _norm(model: ModelConfig, own: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred / np.sqrt(variance + model.norm_eps) * own["scale"] + own["bias"]


def _linear(own: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    y = x @ own["kernel"].astype(np.float64)
    return y + own["bias"] if "bias" in own else y


@pytest.fixture
def run_python() -> Callable[[str], str]:
    """Run code in a fresh interpreter and give what it printed."""
    source = Path(mpcvit.__path__[0]).parent

    def run(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        ).stdout

    return run

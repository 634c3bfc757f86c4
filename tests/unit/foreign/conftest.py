"""Two independent forward passes, and checkpoints that differ a little from golden ones."""

import json
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
from mpcvit.foreign import ForeignModel
from mpcvit.foreign.read import open_source
from mpcvit.model.vit import ViT
from tests import reference

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
    return reference.vit(images, foreign.model, foreign.architecture, foreign.parameters)


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

"""Convert programs of the format `mpcvit-program/1` or `/2` to `mpcvit-program/3`, in place.

    python tools/convert_programs.py PROGRAM.json [...] [showcase.json]

Approximations, weights and calibration stay as they are. The shapes of the weights
are new. They come from the weights beside the file, or from the architecture.
A showcase gets the new digests of its files.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mpcvit import codec
from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.lowering.fold import fold
from mpcvit.lowering.program import Description, shapes_of
from mpcvit.lowering.sites import HEAD_NORM, site_label
from mpcvit.model.checkpoint import read_tensors
from mpcvit.model.vit import init_parameters

KINDS = {"even_chain": "gelu_polynomial", "steep_chain": "exponential_polynomial"}


def convert(path: Path) -> None:
    """Rewrite one `program.json`."""
    old = json.loads(path.read_text(encoding="utf-8"))
    if old["format"] not in ("mpcvit-program/1", "mpcvit-program/2"):
        raise SystemExit(f"{path} has the format {old['format']!r}, which needs no conversion")
    plan = old["plan"]
    if not all(plan["passes"].values()):
        raise SystemExit(f"{path} leaves rewrites out; lower its checkpoint again")
    trust = plan.get("trust", {})
    assured = trust.get("assured", [])
    old["calibration"].pop("engine_reason", None)
    document = {
        "format": "mpcvit-program/3",
        "public": {
            **{name: old[name] for name in ("model", "architecture", "data", "classes")},
            "plan": _plan(plan),
            "engine": old["engine"],
            "trust": {**trust, "assured": assured},
            "shapes": {name: list(shape) for name, shape in _shapes(path, old).items()},
            "scripts": old.get("scripts", {}),
        },
        "calibration": old["calibration"],
        "provenance": old["provenance"],
        "weights": old["weights"],
    }
    codec.save(path, codec.decode(Description, document, str(path)))


def _plan(plan: dict[str, Any]) -> dict[str, Any]:
    approximations = {
        site_label(index, "row_scale" if name == "temper" else name): approximation
        for index, layer in enumerate(plan["layers"])
        for name, approximation in layer.items()
    }
    approximations[HEAD_NORM] = plan["norm"]
    return {label: _renamed(own) for label, own in approximations.items() if own is not None}


def _renamed(approximation: dict[str, Any]) -> dict[str, Any]:
    numbers = dict(approximation)
    kind = numbers.pop("kind")
    return {"is": KINDS.get(kind, kind), **numbers}


def _shapes(path: Path, old: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    weights = path.with_name("weights.safetensors")
    if weights.exists():
        tensors, _ = read_tensors(weights)
        return {name: tensor.shape for name, tensor in tensors.items()}
    model = codec.decode(ModelConfig, old["model"], str(path))
    architecture = Architecture.decoded(old["architecture"], str(path))
    parameters = jax.eval_shape(lambda: init_parameters(model, architecture, seed=0))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), parameters)
    return shapes_of(fold(model, architecture, zeros))


def reseal(showcase: Path) -> None:
    """Write the digests of converted files into the description of a showcase."""
    document = json.loads(showcase.read_text(encoding="utf-8"))
    for name in document["digests"]:
        content = (showcase.parent / name).read_bytes()
        document["digests"][name] = hashlib.sha256(content).hexdigest()
    showcase.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name.endswith("showcase.json"):
            reseal(Path(name))
        else:
            convert(Path(name))

"""Refuses a model that is too large for this machine's memory, before any process starts."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.provenance import PROGRAM_FILE
from mpcvit.codec import decode
from mpcvit.cost.estimate import MEMORY_ERROR, forecast_for
from mpcvit.errors import UserError
from mpcvit.memory import available_bytes

if TYPE_CHECKING:
    from mpcvit.secure.run import AnyModel


def require_memory(
    model: "AnyModel", profile: Profile, *, parties: int, batch_size: int = 1
) -> None:
    """Refuse a model unless this number of parties fits into the memory that is left.

    Nothing is refused where there is no forecast: Cheetah, ABY3, and unusual networks.
    """
    known = read_network(model)
    if known is None:
        return
    shape, architecture, lowered = known
    expected = forecast_for(shape, architecture, profile, lowered=lowered, batch_size=batch_size)
    if expected is None:
        return
    needed, available = parties * expected.memory_bytes, available_bytes()
    # near the limit nobody is turned away because of the forecast's own error
    if needed * (1 - MEMORY_ERROR) <= available:
        return
    smaller = "" if lowered else "lower the model (mpcvit lower), "
    raise UserError(
        f"this model needs about {needed / 1e9:.1f} GB of memory here, {parties} times "
        f"{expected.memory_bytes / 1e9:.1f} GB, and {available / 1e9:.1f} GB are left; a batch "
        f"would send {expected.sent_bytes / 1e9:.2f} GB and take about {expected.seconds:.0f} s; "
        f"{smaller}take fewer images or clients at a time, or a machine with more memory; "
        "--ignore-memory tries it all the same"
    )


def read_network(model: "AnyModel") -> tuple[ModelConfig, Architecture, bool] | None:
    """Return a model's shape and architecture, and whether it is lowered.

    Reads files without JAX. One that cannot be read gives None: its party will say why.
    """
    if not isinstance(model, str | Path):
        own: Any = getattr(model, "checkpoint", model)  # a classifier has one
        return own.model, own.architecture, getattr(own, "engine", None) is not None
    path = Path(model)
    try:
        if path.is_dir():
            document = json.loads((path / PROGRAM_FILE).read_text(encoding="utf-8"))["public"]
        else:
            with safe_open(path, framework="numpy") as file:
                held = file.metadata() or {}
            document = {name: json.loads(held[name]) for name in ("model", "architecture")}
        shape = decode(ModelConfig, document["model"], "model")
        architecture = Architecture.decoded(document["architecture"], "architecture")
    except (UserError, SafetensorError, OSError, ValueError, KeyError, TypeError):
        return None
    return shape, architecture, path.is_dir()

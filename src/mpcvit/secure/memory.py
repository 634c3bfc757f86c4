"""Memory: what a process has taken, what this machine can give, and models that need more."""

import json
import math
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

if TYPE_CHECKING:
    from mpcvit.secure.run import AnyModel

_KIB = 1024


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


def peak_bytes() -> int:
    """Return the most memory that this process has held at a time.

    `getrusage` would not do: its number includes what the parent held when it started us.
    """
    return _field(Path("/proc/self/status"), "VmHWM") or 0


def available_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> float:
    """Return what new processes may take: of the machine, or of this container if that is less.

    File contents that the kernel keeps in memory count as available, as it can drop them.
    Where nothing says how much there is, nothing limits it.
    """
    machine = _field(proc / "meminfo", "MemAvailable")
    return min([math.inf if machine is None else machine, *_left_in_groups(proc, groups)])


def _left_in_groups(proc: Path, groups: Path) -> list[int]:
    """Return what each control group around this process has left, of version 1 or 2."""
    left = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = groups / controllers
        folder = root / path.lstrip("/")
        names, total = ("memory.max", "memory.current"), ""
        if controllers:
            names, total = ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"
        for place in (folder, *folder.parents):
            limit, used = _read(place / names[0]).strip(), _read(place / names[1]).strip()
            if limit.isdigit() and used.isdigit():
                files = (f"{total}{kind}active_file" for kind in ("", "in"))
                dropped = sum(_field(place / "memory.stat", own, unit=1) or 0 for own in files)
                left.append(max(int(limit) - int(used) + dropped, 0))
            if place == root:
                break
    return left


def _field(file: Path, name: str, unit: int = _KIB) -> int | None:
    """Return the number after a name in a file of the kernel, in bytes."""
    for line in _read(file).splitlines():
        words = line.replace(":", " ").split()
        if words[:1] == [name]:
            return int(words[1]) * unit
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""

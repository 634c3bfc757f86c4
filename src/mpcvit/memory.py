"""How much memory a process has taken, and how much this machine can still give."""

import math
from pathlib import Path

_KIB = 1024


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

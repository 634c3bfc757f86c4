"""The files of the package that calls pass through, in the order in which they are entered.

As a script it runs one command, and writes what it saw as JSON:

    python tests/walks/tracer.py walk.json run --simulate program photo.png
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "mpcvit"
GROUND = ("artifacts/", "kinds/", "codec.py", "storage.py", "errors.py")
"""Plain data and files, on which every walk stands: these are not counted."""


@dataclass
class Walk:
    """What one thread did."""

    files: list[str] = field(default_factory=list)
    calls: dict[str, list[str]] = field(default_factory=dict)
    """The files that each file called, with the first function of each."""

    @property
    def counted(self) -> list[str]:
        return [file for file in self.files if not file.startswith(GROUND)]

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """Files that call each other."""
        return {
            (caller, called)
            for caller in self.counted
            for called in self.calls.get(caller, ())
            if caller < called and caller in self.calls.get(called, ())
            if not called.startswith(GROUND)
        }


def trace(arguments: Sequence[str], folder: Path) -> dict[str, Walk]:
    """Run a command in a process of its own; return the walk of each thread."""
    out = folder / "walk.json"
    done = subprocess.run(
        [sys.executable, __file__, str(out), *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    walks = {name: Walk(**walk) for name, walk in json.loads(out.read_text()).items()}
    for name, walk in walks.items():  # shown if a test fails
        print(f"{name}: {len(walk.counted)} files", *walk.counted, sep="\n  ")
    return walks


class Tracer:
    """Collects the walks of the threads that start while it is on."""

    def __init__(self) -> None:
        self.walks: dict[str, Walk] = {}
        self._names = _Names()

    def see(self, frame: FrameType, event: str, _: Any) -> None:
        """Note a call. Nothing is returned, so that Python tells no lines of it."""
        names = self._names
        if not (name := names[frame.f_code.co_filename]):
            return
        walk = self.walks.setdefault(threading.current_thread().name, Walk())
        caller = frame.f_back
        while caller is not None and not names[caller.f_code.co_filename]:
            caller = caller.f_back
        above = "" if caller is None else names[caller.f_code.co_filename]
        is_seen = name in walk.files
        if is_seen and (above in ("", name) or name in walk.calls.get(above, ())):
            return
        if _is_importing(frame):
            return
        if not is_seen:
            walk.files.append(name)
        called = walk.calls.setdefault(above, [])
        if above and above != name and name not in called:
            called.append(name)


class _Names(dict[str, str]):
    """By path, a file's name in the package, and nothing for others."""

    def __missing__(self, file: str) -> str:
        path = Path(file)
        inside = path.is_relative_to(PACKAGE)
        self[file] = str(path.relative_to(PACKAGE)) if inside else ""
        return self[file]


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a call is part of the execution of a module at its import."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename != __file__:
            return True
        frame = frame.f_back
    return False


def main() -> None:
    """Trace the command that the arguments name."""
    from mpcvit.cli import main as command
    from mpcvit.lowering import calibrate, program

    calibrate._BATCH = program._BATCH = 4  # as in all tests: few images are traced quickly
    out, *arguments = sys.argv[1:]
    sys.argv = ["mpcvit", *arguments]
    tracer = Tracer()
    threading.settrace(tracer.see)
    sys.settrace(tracer.see)
    try:
        command()
    except SystemExit as ended:
        if ended.code:
            raise
    finally:
        sys.settrace(None)
    walks = {name: asdict(walk) for name, walk in tracer.walks.items()}
    Path(out).write_text(json.dumps(walks))


if __name__ == "__main__":
    main()

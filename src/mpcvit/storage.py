"""Files that are either whole or absent: write aside, then rename."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpcvit.errors import UserError

CACHE_VARIABLE = "MPCVIT_CACHE"


def cache_folder() -> Path:
    """Return the folder for what is kept between runs."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/mpcvit/data").expanduser()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it there once the body succeeds."""
    path = Path(path)
    temporary: Path | None = None
    try:
        if path.exists() and not path.is_file():
            # the rename would put a file in the place of a device, such as /dev/null
            raise UserError(f"cannot write {path}: it is no regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        _flush(temporary)
        # mkstemp makes private files; what a user asked for gets their usual mode
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path`; it takes that place once the body succeeds.

    It can be entered by its owner alone.
    """
    path = Path(path).absolute()
    aside: list[Path] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        aside.append(temporary)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _flush(file)
        if path.exists():
            former = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            aside.append(former)
            path.replace(former)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        for folder in aside:
            shutil.rmtree(folder, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(text: str | bytes, origin: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{origin} is not valid JSON: {error}") from error


def require_room(folder: Path, needed_bytes: int) -> None:
    """Refuse early when a folder cannot be written or its disk is nearly full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe."):
            free_bytes = shutil.disk_usage(folder).free
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror or error}") from error
    if free_bytes < needed_bytes:
        raise UserError(
            f"{folder} has {free_bytes / 1e6:,.0f} MB free, but {needed_bytes / 1e6:,.0f} MB "
            "are needed; free some space or choose another folder"
        )


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

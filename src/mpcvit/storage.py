"""Files that are either whole or absent: write aside, then rename."""

import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from mpcvit.errors import UserError

CACHE_VARIABLE = "MPCVIT_CACHE"
LOCK_FILE = ".lock"
SMALL_BYTES = 1_000_000  # room for a record, answers, or a page


def cache_folder() -> Path:
    """Return the folder for what is kept between runs."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/mpcvit/data").expanduser()


def state_folder() -> Path:
    """Return the folder for what a command must find again, such as counts and answers."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "mpcvit"


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path`; rename it there once the body succeeds.

    A private file can be read by its owner alone.
    """
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
        if not private:  # as mkstemp makes them; others get the user's usual mode
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


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold a folder for this process alone; raise if another one does, and say which.

    The system gives the lock of a process that has died back.
    """
    lock = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _lock(lock)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {_why_no_folder(error)}") from error
    if file is None:
        raise UserError(
            f"{folder} is in use by {_read_holder(lock)}; wait for it, or name another folder"
        )
    with file:
        file.truncate(0)
        since = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, since {since}")
        file.flush()
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _lock(path: Path) -> TextIO | None:
    """Return a locked file, or None if another process has locked it."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # its last holder may have removed it since it was opened
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:  # network file systems may have no locks
            file.close()
            raise UserError(
                f"cannot lock {path.parent}: {error.strerror or error}; name a folder on a "
                "disk of this machine"
            ) from error
        file.close()


def _read_holder(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8") or "another process"
    except (OSError, UnicodeDecodeError):
        return "another process"


def write_text(path: Path, text: str, *, private: bool = False) -> None:
    with replacing(path, private=private) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_writable(path: Path, needed_bytes: int = SMALL_BYTES) -> None:
    """Refuse early a file that could not be written later."""
    if path.exists() and not path.is_file():
        what = "a folder; name a file in it" if path.is_dir() else "no regular file"
        raise UserError(f"cannot write {path}: it is {what}")
    require_room(path.absolute().parent, needed_bytes)


def require_own_folder(folder: Path, own: Collection[str]) -> None:
    """Refuse to replace a folder that holds other files than `own`, which would be lost."""
    try:
        others = {entry.name for entry in folder.iterdir()} - set(own) if folder.exists() else ()
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror or error}") from error
    if others:
        raise UserError(f"{folder} holds other things, such as {min(others)}; choose a new folder")


def read_text(path: Path, what: str) -> str:
    """Return the text of a file of a user; `what` says what it is."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"there is no {what} {path}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"cannot read the {what} {path}: it is not a text") from error
    except OSError as error:
        raise UserError(f"cannot read the {what} {path}: {error.strerror or error}") from error


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
        raise UserError(f"cannot write into {folder}: {_why_no_folder(error)}") from error
    if free_bytes < needed_bytes:
        raise UserError(
            f"{folder} has {size_text(free_bytes)} free, but {size_text(needed_bytes)} are "
            "needed; free some space or choose another folder"
        )


def _why_no_folder(error: OSError) -> str:
    if isinstance(error, FileExistsError | NotADirectoryError):
        return "a file stands there; name a folder"
    return error.strerror or str(error)


def size_text(size_bytes: float) -> str:
    """Return a size with the largest unit that leaves a whole number of it.

    >>> size_text(0), size_text(2_500), size_text(31_000_000), size_text(4_600_000_000)
    ('0 bytes', '2.5 kB', '31.0 MB', '4.6 GB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {unit}"
    return f"{size_bytes} bytes"


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

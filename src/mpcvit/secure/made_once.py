"""What is made once: kept by key in memory and on disk, and shared by the parties of a machine."""

import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mpcvit.errors import UserError
from mpcvit.storage import cache_folder, replacing

Progress = Callable[[int, int], None]

_DIGEST_BYTES = 32
# where others may write, a link might lead anywhere, and opening a pipe might never end
_PLAINLY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_LOOKS_EVERY_S = 0.05
_PATIENCE_S = 120.0  # with a process that makes something and does not end


class MadeOnce:
    """A folder of the user's cache, whose files are what their keys say.

    Keys name everything that the content depends on. A file is believed only if it
    belongs to this user, nobody else may write it, and it has the digest of its key and
    content. Where nothing can be kept, everything is made again.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.in_memory: dict[str, bytes] = {}

    def find(self, key: str) -> bytes | None:
        """Return what is kept, unless it is absent or damaged."""
        if key not in self.in_memory:
            content = self._read(key)
            if content is None:
                return None
            self.in_memory[key] = content
        return self.in_memory[key]

    def each(self, keys: Iterable[str]) -> Iterator[tuple[str, bool]]:
        """Give every key once, and whether the caller must now make its content and keep it.

        Parties that start at the same time share the work: what another process is making
        is left to it, as long as something else is to be done or it does not take too long.
        """
        waiting, moved = list(dict.fromkeys(keys)), time.monotonic()
        while waiting:
            is_late = time.monotonic() - moved > _PATIENCE_S
            for key in tuple(waiting):
                if self.find(key) is not None:
                    yield key, False
                else:
                    with _claim(self._path(key).with_suffix(".lock")) as is_mine:
                        if not is_mine and not is_late:
                            continue
                        yield key, self.find(key) is None  # another may just have ended
                waiting.remove(key)
                moved = time.monotonic()
            if waiting:
                time.sleep(_LOOKS_EVERY_S)

    def keep(self, key: str, content: bytes) -> None:
        self.in_memory[key] = content
        try:
            with replacing(self._path(key), private=True) as temporary:
                temporary.write_bytes(self._digest(key, content) + content)
        except UserError:
            pass  # the next process makes it again

    def _read(self, key: str) -> bytes | None:
        try:
            handle = os.open(self._path(key), os.O_RDONLY | _PLAINLY)
            with os.fdopen(handle, "rb") as file:
                status = os.fstat(handle)
                content = file.read() if stat.S_ISREG(status.st_mode) else b""
        except OSError:
            return None
        digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        return content if digest == self._digest(key, content) else None

    def _digest(self, key: str, content: bytes) -> bytes:
        """Return a digest that no other key's content has, should a file be renamed."""
        return hashlib.sha256(f"{self._folder}/{key}:".encode() + content).digest()

    def _path(self, key: str) -> Path:
        return cache_folder() / self._folder / f"{key}.kept"


@contextmanager
def _claim(path: Path) -> Iterator[bool]:
    """Give whether this process may make something. A claim ends with its process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_CREAT | os.O_RDWR | _PLAINLY, 0o600)
    except OSError:
        yield True  # nothing can be shared here
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:  # a file system without locks
            yield True
            return
        yield True
        path.unlink(missing_ok=True)
    finally:
        os.close(lock)

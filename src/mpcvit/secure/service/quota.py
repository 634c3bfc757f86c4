"""How many images each client may still send, and which clients are allowed.

Both are kept in an SQLite file, or in a PostgreSQL database that several servers share.
The same statements serve both; only the mark of a parameter differs.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from mpcvit.errors import UserError, needs_extra
from mpcvit.storage import state_folder

POSTGRESQL = ("postgresql://", "postgres://")
_TABLES = (
    "CREATE TABLE IF NOT EXISTS usage (client TEXT NOT NULL, day TEXT NOT NULL, "
    "images BIGINT NOT NULL, PRIMARY KEY (client, day))",
    "CREATE TABLE IF NOT EXISTS clients (fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL)",
)
# one statement, so that two servers cannot both give out the last image
_RESERVE = (
    "INSERT INTO usage (client, day, images) VALUES (?, ?, ?) ON CONFLICT (client, day) "
    "DO UPDATE SET images = usage.images + excluded.images "
    "WHERE usage.images + excluded.images <= ? RETURNING images"
)
_USED = "SELECT images FROM usage WHERE client = ? AND day = ?"
_RELEASE = "UPDATE usage SET images = images - ? WHERE client = ? AND day = ?"
_HAS_OLD = "SELECT 1 FROM usage WHERE day < ? LIMIT 1"
_FORGET_USAGE = "DELETE FROM usage WHERE day < ?"
_ALLOW = (
    "INSERT INTO clients (fingerprint, name) VALUES (?, ?) "
    "ON CONFLICT (fingerprint) DO UPDATE SET name = excluded.name"
)
_REPLACE = "DELETE FROM clients WHERE name = ? AND fingerprint <> ?"
_REVOKE = "DELETE FROM clients WHERE name = ?"
_ALLOWED = "SELECT fingerprint, name FROM clients"
_KEEP_DAYS = 32
# Each change waits until the disk has it, and several servers may wait for each other.
_WAIT_S = 60.0


class _Connection(Protocol):
    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[Any], int]: ...

    def close(self) -> None: ...


class State:
    """Counts images by client and day, and holds the allowed clients of a database."""

    def __init__(self, connection: _Connection, *, is_shared: bool) -> None:
        self._connection = connection
        self.is_shared = is_shared  # then the allowed clients are in it too
        try:
            for statement in _TABLES:
                connection.run(statement)
            self._forget_old_days()
        except UserError:
            connection.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def reserve(self, client: str, images: int, most: int, day: str | None = None) -> int | None:
        """Take images from a client's budget of a day; return how many are used then, or None."""
        day = day or today()
        if images > most:
            return None
        rows, _ = self._connection.run(_RESERVE, (client, day, images, most))
        return rows[0][0] if rows else None

    def release(self, client: str, images: int, day: str) -> None:
        """Give back images that were reserved and never answered."""
        self._connection.run(_RELEASE, (images, client, day))

    def used(self, client: str, day: str | None = None) -> int:
        rows, _ = self._connection.run(_USED, (client, day or today()))
        return rows[0][0] if rows else 0

    def allow(self, name: str, fingerprint: str) -> None:
        """Put a client on the list, in place of any earlier certificate of the same name."""
        self._connection.run(_ALLOW, (fingerprint, name))
        self._connection.run(_REPLACE, (name, fingerprint))

    def revoke(self, name: str) -> None:
        _, count = self._connection.run(_REVOKE, (name,))
        if not count:
            raise UserError(f"the database lists no client '{name}'")

    def allowed(self) -> dict[str, str]:
        """Return the names of the allowed clients by fingerprint."""
        rows, _ = self._connection.run(_ALLOWED)
        return dict(rows)

    def _forget_old_days(self) -> None:
        """Delete the counts of days that are long over.

        Usually there are none, and a server that starts waits for nobody who writes.
        """
        before = (_day(time.time() - _KEEP_DAYS * 86_400),)
        if self._connection.run(_HAS_OLD, before)[0]:
            self._connection.run(_FORGET_USAGE, before)


def open_state(place: str | Path) -> State:
    """Open a database: the path of an SQLite file, or postgresql://USER@HOST/NAME."""
    if str(place).startswith(POSTGRESQL):
        return State(_PostgreSql(str(place)), is_shared=True)
    return State(_Sqlite(Path(place)), is_shared=False)


def default_state() -> Path:
    """Return the SQLite file that is used unless another one is named."""
    return state_folder() / "server.sqlite"


def today() -> str:
    return _day(time.time())


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%d")


class _Sqlite:
    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._connection = sqlite3.connect(
                path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot open the state file {path}: {error}") from error

    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[Any], int]:
        try:
            with self._lock:
                cursor = self._connection.execute(statement, values)
                return cursor.fetchall(), cursor.rowcount
        except sqlite3.Error as error:
            raise UserError(f"the state file {self._path} cannot be used: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class _PostgreSql:
    """One connection, made anew when the database has closed it."""

    def __init__(self, address: str) -> None:
        with needs_extra("postgresql", "a PostgreSQL state"):
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        self._error: type[Exception] = psycopg.Error
        # two servers that start at the same moment both make the tables
        self._collision: tuple[type[Exception], ...] = (
            psycopg.errors.UniqueViolation,
            psycopg.errors.DuplicateTable,
            psycopg.errors.DuplicateObject,
        )
        if not _is_plain(address, conninfo_to_dict, psycopg.Error):
            raise UserError(
                "the address of the state database cannot be read; write "
                "postgresql://USER@HOST/NAME, and special characters as %40"
            )
        self._connect: Callable[[], Any] = lambda: psycopg.connect(
            address, autocommit=True, connect_timeout=10
        )
        self._lock = threading.Lock()
        self._connection: Any = None

    def run(self, statement: str, values: Sequence[Any] = ()) -> tuple[list[Any], int]:
        text = statement.replace("?", "%s")
        with self._lock:
            for is_last in (False, True):
                try:
                    if self._connection is None or self._connection.closed:
                        self._connection = self._connect()
                    cursor = self._connection.execute(text, values)
                    return cursor.fetchall() if cursor.description else [], cursor.rowcount
                except self._error as error:
                    is_closed = self._connection is None or self._connection.closed
                    if is_last or not (is_closed or isinstance(error, self._collision)):
                        reason = str(error).strip().splitlines()
                        raise UserError(
                            f"the state database cannot be used: {reason[0] if reason else error}"
                        ) from None
            raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()


def _is_plain(address: str, parse: Callable[[str], dict[str, Any]], error: type[Exception]) -> bool:
    """Return whether an address is read as it was meant, so that no message repeats its password.

    A password with an @ or a slash would be taken for the host or the database.
    """
    try:
        parts = parse(address)
    except error:
        return False
    return not any("@" in str(parts.get(name, "")) for name in ("host", "port", "dbname"))

"""Budgets and the list of clients, in SQLite and in PostgreSQL alike."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mpcvit.errors import UserError
from mpcvit.secure.service import quota
from mpcvit.secure.service.quota import open_state, today

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
DAY, NEXT_DAY = "2999-03-01", "2999-03-02"  # which nobody forgets meanwhile


@pytest.fixture(scope="module")
def cluster():
    """Start a throw-away PostgreSQL that listens on a socket in a folder alone."""
    pytest.importorskip("psycopg", reason="needs psycopg")
    if not BINARIES:
        pytest.skip("PostgreSQL is not installed")
    user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root
    folder = Path(tempfile.mkdtemp(prefix="mpcvit-postgresql-"))
    if user:
        shutil.chown(folder, user)
    data, binaries = folder / "data", BINARIES[-1].parent
    quiet = {"user": user, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    options = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"]
    try:
        subprocess.run([binaries / "initdb", *options, "-D", data], check=True, **quiet)
        settings = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "shared_buffers=1MB"]
        command = [binaries / "postgres", "-D", data, "-k", folder, *settings]
        server = subprocess.Popen(command, **quiet)
        try:
            deadline = time.monotonic() + 30
            while not (folder / ".s.PGSQL.5432").exists():
                assert server.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield f"postgresql://postgres@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait(timeout=30)
    finally:
        shutil.rmtree(folder)


def run_once(address, statement):
    """Run a statement of an administrator; PostgreSQL may still be starting."""
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            with psycopg.connect(address, autocommit=True) as connection:
                connection.execute(statement)
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Return where an empty state may be opened, as often as wanted."""
    if request.param == "sqlite":
        return tmp_path / "below" / "state.sqlite"
    address = request.getfixturevalue("cluster")
    run_once(address, "DROP TABLE IF EXISTS usage, clients")
    return address


@contextmanager
def opened(place):
    with closing(open_state(place)) as state:
        yield state


def test_a_budget_is_by_client_and_day(place):
    with opened(place) as state:
        assert state.reserve("one", 6, 10, DAY) == 6
        assert state.reserve("one", 5, 10, DAY) is None
        assert state.used("one", DAY) == 6  # a refusal takes nothing
        assert state.reserve("one", 4, 10, DAY) == 10
        assert state.reserve("one", 1, 10, DAY) is None
        assert state.reserve("two", 10, 10, DAY) == 10
        assert state.reserve("one", 10, 10, NEXT_DAY) == 10
        assert state.reserve("three", 11, 10, DAY) is None  # at the very first time, too
        assert state.used("three", DAY) == 0


def test_what_was_not_answered_is_given_back_to_its_day(place):
    with opened(place) as state:
        state.reserve("one", 10, 10, DAY)
        state.release("one", 7, DAY)
        assert state.used("one", DAY) == 3
        assert state.used("one", NEXT_DAY) == 0
        assert state.reserve("one", 8, 10, DAY) is None
        assert state.reserve("one", 7, 10, DAY) == 10
        state.release("nobody", 5, DAY)
        assert state.used("nobody", DAY) == 0


def test_counts_outlast_a_restart_and_old_days_are_forgotten(place):
    with opened(place) as state:
        state.reserve("one", 3, 10)
        state.reserve("one", 4, 10, "2001-01-01")
    with opened(place) as state:
        assert state.used("one") == state.used("one", today()) == 3
        assert state.used("one", "2001-01-01") == 0
        assert state.used("one") == 3


@pytest.fixture
def any_disk(monkeypatch):
    """SQLite does not wait for the disk, which may take seconds under load."""
    connect = sqlite3.connect

    def connect_without_waiting(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr(quota.sqlite3, "connect", connect_without_waiting)


@pytest.mark.usefixtures("any_disk")
def test_connections_at_the_same_time_cannot_both_take_the_last_image(place):
    """Each of them also makes the tables, as servers do that start together."""
    count = 8
    together = threading.Barrier(count)

    def take(_):
        together.wait()
        with opened(place) as state:
            return [state.reserve("one", 1, 20, DAY) for _ in range(5)]

    with ThreadPoolExecutor(count) as threads:
        results = [result for results in threads.map(take, range(count)) for result in results]
    assert sorted(result for result in results if result is not None) == list(range(1, 21))
    assert results.count(None) == 5 * count - 20


def test_a_server_starts_while_another_one_writes(tmp_path, monkeypatch):
    """It opens the state and reads it, and waits for the other one when it must write too."""
    path = tmp_path / "state.sqlite"
    monkeypatch.setattr(quota, "_WAIT_S", 0.05)
    with opened(path) as state, closing(sqlite3.connect(path, isolation_level=None)) as other:
        state.reserve("one", 3, 10, DAY)
        other.execute("BEGIN IMMEDIATE")
        with opened(path) as second:
            assert second.used("one", DAY) == 3
            with pytest.raises(UserError, match="database is locked"):
                second.reserve("one", 1, 10, DAY)
            other.execute("COMMIT")
            assert second.reserve("one", 1, 10, DAY) == 4


def test_threads_may_share_a_state(place):
    with opened(place) as state, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: state.reserve("one", 1, 100, DAY), range(40)))
        assert state.used("one", DAY) == 40


def test_the_list_of_clients(place):
    with opened(place) as state:
        assert state.allowed() == {}
        state.allow("hospital", "a" * 64)
        state.allow("clinic", "b" * 64)
        state.allow("hospital", "c" * 64)  # a new certificate, in place of the former
        state.allow("hospital", "c" * 64)
        assert state.allowed() == {"b" * 64: "clinic", "c" * 64: "hospital"}
        state.revoke("hospital")
        assert state.allowed() == {"b" * 64: "clinic"}
        with pytest.raises(UserError, match="lists no client 'hospital'"):
            state.revoke("hospital")


class Recorder:
    """Keeps the list after each statement."""

    def __init__(self, connection):
        self.inner, self.lists = connection, []

    def run(self, statement, values=()):
        result = self.inner.run(statement, values)
        self.lists.append(dict(self.inner.run("SELECT fingerprint, name FROM clients")[0]))
        return result


def test_a_client_that_is_listed_again_is_never_off_the_list(place):
    """A server that looks at that moment would end its sessions."""
    with opened(place) as state:
        state.allow("hospital", "a" * 64)
        recorder = state._connection = Recorder(state._connection)
        state.allow("hospital", "a" * 64)
        assert all("a" * 64 in found for found in recorder.lists)
        state._connection = recorder.inner


def test_a_connection_that_the_database_closed_is_made_anew(cluster):
    with opened(cluster) as state:
        state.reserve("restart", 1, 10, DAY)
        run_once(
            cluster,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'",
        )
        assert state.used("restart", DAY) == 1


def test_only_a_database_is_shared(cluster, tmp_path):
    with (
        opened(cluster) as one,
        opened(tmp_path / "state.sqlite") as two,
        opened(":memory:") as three,
    ):
        assert [one.is_shared, two.is_shared, three.is_shared] == [True, False, False]


def test_a_broken_file_is_explained(tmp_path):
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"no database" * 1000)
    for broken in (path, tmp_path):
        with pytest.raises(UserError, match="state file") as error:
            open_state(broken)
        assert str(broken) in str(error.value)
    with pytest.raises(UserError, match="cannot open the state file"):
        open_state(path / "below")


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://user:s3cret@127.0.0.1:1/name",
        "postgresql://user:s3cret@[::1/name",
        "postgresql://user:s3cret@127.0.0.1:port/name",
        "postgresql://user:s3cret@/name?host=/nowhere",
        "postgresql://user:s3cret@/name?unknown=1",
        "postgresql://user:p@s3cret@host/name",
        "postgresql://user:1/s3cret@host/name",
        "postgresql://user:s3cret/@host/name",
        "postgresql://user:1?s3cret@host/name",
        "postgresql://user:%s3cret@host/name",
        "postgres://user@127.0.0.1:1/name?password=s3cret",
    ],
)
def test_a_broken_address_is_explained_without_its_password(address):
    pytest.importorskip("psycopg", reason="needs psycopg")
    with pytest.raises(UserError, match="state database") as error:
        open_state(address)
    shown = "".join(str(each) for each in (error.value, error.value.__cause__))
    assert "s3cret" not in shown
    assert "\n" not in shown


def test_the_default_file_is_in_the_folder_for_states(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert quota.default_state() == tmp_path / "mpcvit" / "server.sqlite"


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UserError, match=r"pip install 'mpcvit\[postgresql\]'"):
        open_state("postgresql://user@host/name")

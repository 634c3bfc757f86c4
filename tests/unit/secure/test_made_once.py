"""What is made once: by one of two parties, again where it is damaged, and never by a stranger."""

import errno
import multiprocessing
import os
import threading
import time
from unittest.mock import Mock

import pytest

from mpcvit.secure import made_once
from mpcvit.secure.made_once import MadeOnce

KEYS = [f"key{index}" for index in range(6)]


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path))
    return tmp_path / "things"


def make_all(kept, made, seconds=0.0):
    for key, is_absent in kept.each(KEYS):
        if is_absent:
            made.append(key)
            time.sleep(seconds)
            kept.keep(key, key.encode())
    return kept.in_memory


def _make_in_a_process(seconds, pipe, together):
    made = []
    together.wait()
    pipe.send((made, make_all(MadeOnce("things"), made, seconds)))


# JAX warns if another test of this process has loaded it; the children do not use it
@pytest.mark.filterwarnings("ignore:os.fork")
def test_two_processes_share_the_work():
    context, results = multiprocessing.get_context("fork"), []
    started, together = [], context.Barrier(2)
    for _ in range(2):
        receiving, sending = context.Pipe(duplex=False)
        process = context.Process(target=_make_in_a_process, args=(0.2, sending, together))
        process.start()
        started.append((process, receiving))
    for process, receiving in started:
        results.append(receiving.recv())
        process.join()
    (mine, found), (theirs, same) = results
    assert sorted(mine + theirs) == KEYS  # each once
    assert mine
    assert theirs
    assert found == same == {key: key.encode() for key in KEYS}


def test_kept(folder):
    made = []
    make_all(MadeOnce("things"), made)
    assert MadeOnce("things").find("key0") == b"key0"
    again = MadeOnce("things")
    make_all(again, made)
    assert made == KEYS
    assert list(again.each(["key1", "key0", "key1"])) == [("key1", False), ("key0", False)]
    assert {path.suffix for path in folder.iterdir()} == {".kept"}  # no lock is left


@pytest.mark.parametrize("harm", ["digest", "empty", "owner", "group", "others", "key", "folder"])
def test_what_is_not_believed(folder, monkeypatch, harm):
    make_all(MadeOnce("things"), [])
    path = folder / "key0.kept"
    if harm == "digest":
        path.write_bytes(path.read_bytes() + b"?")
    elif harm == "empty":
        path.write_bytes(b"")
    elif harm == "owner":  # another user of this machine put it there
        monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    elif harm == "key":  # what is believed under another name
        (folder / "key1.kept").rename(path)
    elif harm == "folder":
        folder.rename(folder.with_name("others"))
        assert MadeOnce("others").find("key0") is None
    else:
        path.chmod(0o620 if harm == "group" else 0o602)
    assert MadeOnce("things").find("key0") is None


def test_what_another_user_lays_into_the_folder(folder, tmp_path):
    """Into a folder that others may write: a pipe without an end, and links to files of ours."""
    make_all(MadeOnce("things"), [])
    (folder / "key0.kept").unlink()
    os.mkfifo(folder / "key0.kept")
    (folder / "key1.kept").rename(tmp_path / "elsewhere")
    (folder / "key1.kept").symlink_to(tmp_path / "elsewhere")
    for key in KEYS[:2]:
        (folder / f"{key}.lock").symlink_to(tmp_path / "victim")
    found, made = [], []

    def use():
        found.extend(map(MadeOnce("things").find, KEYS[:2]))
        make_all(MadeOnce("things"), made)

    user = threading.Thread(target=use, daemon=True)
    user.start()
    user.join(10)
    assert not user.is_alive()
    assert found == [None, None]
    assert sorted(made) == KEYS[:2]  # the others are as they were
    assert not (tmp_path / "victim").exists()


def test_kept_for_this_user_alone(folder):
    umask = os.umask(0o002)  # as distributions have it where every user has a group
    try:
        make_all(MadeOnce("things"), [])
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert MadeOnce("things").find("key0") == b"key0"


def test_nobody_waits_where_there_are_no_locks(monkeypatch):
    monkeypatch.setattr(made_once.fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "none")))
    made = []
    make_all(MadeOnce("things"), made)
    assert made == KEYS


def test_who_fails_or_hangs_holds_nobody_up(monkeypatch):
    def fail(kept):
        for _key, is_absent in kept.each(["key0"]):
            assert is_absent
            raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        fail(MadeOnce("things"))
    hanging, release = threading.Event(), threading.Event()

    def hang():
        for _ in MadeOnce("things").each(["key0"]):
            hanging.set()
            release.wait(30)

    other = threading.Thread(target=hang)
    other.start()
    hanging.wait(30)
    monkeypatch.setattr(made_once, "_PATIENCE_S", 0.2)
    assert list(MadeOnce("things").each(["key0"])) == [("key0", True)]
    release.set()
    other.join()


def test_nowhere_to_keep_it(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path / "file"))
    made = []
    assert make_all(MadeOnce("things"), made)["key3"] == b"key3"
    assert made == KEYS

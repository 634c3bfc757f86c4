"""Files are whole or absent."""

import errno
import os
import signal
import stat
import subprocess
import sys
from unittest.mock import Mock

import pytest

from mpcvit.errors import UserError
from mpcvit.storage import (
    holding,
    replacing,
    replacing_folder,
    require_own_folder,
    require_room,
    write_text,
)


def test_failure_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_are_whole_or_absent_too(tmp_path):
    path = tmp_path / "folder"

    def fill(text, *, fail):
        with replacing_folder(path) as temporary:
            (temporary / "file.txt").write_text(text)
            if fail:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fill("half", fail=True)
    assert list(tmp_path.iterdir()) == []
    fill("old", fail=False)
    with pytest.raises(RuntimeError):
        fill("half", fail=True)
    assert (path / "file.txt").read_text() == "old"
    fill("new", fail=False)
    assert (path / "file.txt").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_of_other_things_is_not_replaced(tmp_path):
    require_own_folder(tmp_path / "new", ["a.txt"])
    (tmp_path / "a.txt").write_text("")
    require_own_folder(tmp_path, ["a.txt"])
    with pytest.raises(UserError, match=r"holds other things, such as a\.txt"):
        require_own_folder(tmp_path, ["b.txt"])


def test_full_disk_says_so(tmp_path):
    with (
        pytest.raises(UserError, match="No space left on device"),
        replacing(tmp_path / "x"),
        open("/dev/full", "wb", buffering=0) as full,  # the kernel's own always-full device
    ):
        full.write(b"1")


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_text(tmp_path / "file" / "below.txt", "text")
    with pytest.raises(UserError, match="cannot write into"):
        require_room(tmp_path / "file", 1)


def test_too_little_room(tmp_path):
    require_room(tmp_path, 1)
    with pytest.raises(UserError, match=r"free, but .* are needed"):
        require_room(tmp_path, 10**18)


def test_a_device_is_not_replaced(tmp_path):
    """Root may rename a file over /dev/null, and would."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: it is no regular file"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_private_files_are_readable_to_their_owner_alone(tmp_path):
    for name, private in (("private", True), ("usual", False)):
        write_text(tmp_path / name, "old")
        write_text(tmp_path / name, "text", private=private)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "usual")]
    assert modes[0] == 0o600 != modes[1]


HOLD = """
import sys, pathlib
from mpcvit.storage import holding
with holding(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def hold(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_folder_has_one_holder(tmp_path):
    folder = tmp_path / "new" / "run"
    with hold(folder) as other:
        with (
            pytest.raises(UserError, match=rf"in use by process {other.pid} on .+, since 20"),
            holding(folder),
        ):
            pass
        other.stdin.close()
        other.wait()
    assert list(folder.iterdir()) == []
    with holding(folder):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path):
    with hold(tmp_path) as other:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert len(list(tmp_path.iterdir())) == 1  # which says nothing any more
    with holding(tmp_path):
        assert str(os.getpid()) in next(tmp_path.iterdir()).read_text()
        with pytest.raises(UserError, match=f"process {os.getpid()} "), holding(tmp_path):
            pass


def test_a_folder_that_cannot_be_held(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write into .+/file/run: "):
        hold_here(tmp_path / "file" / "run")
    no_locks = Mock(side_effect=OSError(errno.ENOLCK, "No locks available"))
    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(UserError, match=r"cannot lock .+/run: No locks available; name"):
        hold_here(tmp_path / "run")


def hold_here(folder):
    with holding(folder):
        pass

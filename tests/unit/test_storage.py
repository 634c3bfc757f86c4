"""Files are whole or absent."""

import os

import pytest

from mpcvit.errors import UserError
from mpcvit.storage import replacing, replacing_folder, require_room, write_text


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
    with pytest.raises(UserError, match="MB are needed"):
        require_room(tmp_path, 10**18)


def test_a_device_is_not_replaced(tmp_path):
    """Root may rename a file over /dev/null, and would."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: it is no regular file"):
        write_text(tmp_path / "pipe", "text")
    assert (tmp_path / "pipe").is_fifo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]

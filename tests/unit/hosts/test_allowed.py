"""The list of allowed peers: read strictly, replaced whole."""

import pytest

from mpcvit.errors import UserError
from mpcvit.hosts.peer import allow, read_allowed, require_name, revoke, write_allowed

ONE, TWO, THREE = "1" * 64, "2" * 64, "ab" * 32


def test_a_list_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "allowed.txt"
    write_allowed(path, {ONE: "hospital", THREE: "clinic"})
    assert read_allowed(path) == {ONE: "hospital", THREE: "clinic"}
    assert path.read_text().startswith("#")
    assert list(tmp_path.iterdir()) == [path]  # nothing aside


def test_people_may_edit_it(tmp_path):
    path = tmp_path / "allowed.txt"
    path.write_text(f"# mine\n\n  {ONE}\thospital  # until May\n{TWO}    clinic\n")
    assert read_allowed(path) == {ONE: "hospital", TWO: "clinic"}


@pytest.mark.parametrize(
    "line",
    [
        ONE,
        f"hospital {ONE}",
        f"{ONE[1:]} hospital",
        f"{ONE}0 hospital",
        f"{ONE} hospital and clinic",
        f"{THREE.upper()} hospital",
        "*  everybody",
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_nobody_is_let_in(tmp_path, line):
    path = tmp_path / "allowed.txt"
    path.write_text(f"{TWO}  clinic\n{line}\n")
    with pytest.raises(UserError, match=r"allowed\.txt, line 2: write a fingerprint and a name"):
        read_allowed(path)
    with pytest.raises(UserError, match="line 2"):
        allow(path, "new", ONE)
    assert line in path.read_text()


def test_a_missing_or_unreadable_list_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read the list of allowed peers .*allowed\.txt"):
        read_allowed(tmp_path / "allowed.txt")
    (tmp_path / "allowed.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read the list"):
        read_allowed(tmp_path / "allowed.txt")


def test_a_new_certificate_takes_the_place_of_the_former(tmp_path):
    path = tmp_path / "allowed.txt"
    allow(path, "hospital", ONE)
    allow(path, "clinic", TWO)
    allow(path, "hospital", THREE)
    assert read_allowed(path) == {TWO: "clinic", THREE: "hospital"}


def test_who_is_revoked_is_off_the_list(tmp_path):
    path = tmp_path / "allowed.txt"
    write_allowed(path, {ONE: "hospital", TWO: "clinic"})
    revoke(path, "hospital")
    assert read_allowed(path) == {TWO: "clinic"}
    with pytest.raises(UserError, match="lists no 'hospital'; it lists clinic"):
        revoke(path, "hospital")
    assert read_allowed(path) == {TWO: "clinic"}


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", ".hidden", "a/b", "é", "x" * 65, "a\n"])
def test_names_that_cannot_be_folders(name):
    with pytest.raises(UserError, match="cannot be a client's name"):
        require_name(name)


@pytest.mark.parametrize("name", ["hospital", "St.Mary-2", "x" * 64])
def test_names_that_can(name):
    require_name(name)

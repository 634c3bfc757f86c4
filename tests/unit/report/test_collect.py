"""What places hold, and what is said of what cannot be read."""

from pathlib import Path

import pytest

from mpcvit.errors import UserError
from mpcvit.report.collect import TableKind, collect, shortest_unique_names


def test_everything_is_found_and_named_apart(places):
    collected = collect(places)
    assert [found.name for found in collected.networks] == ["mpcvit-0.3", "softmax"]
    assert [found.name for found in collected.searches] == ["search"]
    assert {(found.name, found.value.form) for found in collected.records} == {
        ("mpcvit-0.3", "plain"),
        ("mpcvit-0.3", "lowered"),
    }
    assert {found.name for found in collected.logs} == {"mpcvit-0.3"}
    kinds = {found.value.kind for found in collected.tables}
    assert kinds == set(TableKind) - {TableKind.SEARCHES}
    (reason,) = collected.skipped
    assert "broken" in reason


def test_what_was_named_must_be_readable(places, tmp_path):
    with pytest.raises(UserError, match="damaged"):
        collect([places[0] / "broken" / "model.safetensors"])
    with pytest.raises(UserError, match=r"unrelated.csv is no run, record or table"):
        collect([places[0] / "unrelated.csv"])
    with pytest.raises(UserError, match="there is no run"):
        collect([tmp_path / "nowhere"])
    assert collect([tmp_path]).is_empty


def test_names_are_as_short_as_they_can_be():
    assert shortest_unique_names([Path("a/x/seed-0"), Path("b/x/seed-0")]) == ["a/x", "b/x"]
    assert shortest_unique_names([Path("a/x"), Path("a/x")]) == ["x", "x"]  # two files of one run

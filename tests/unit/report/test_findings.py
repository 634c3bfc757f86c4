"""What places hold, and what is said of what cannot be read."""

from pathlib import Path

import pytest

from mpcvit.errors import UserError
from mpcvit.report.findings import TableKind, gather, name_apart


def test_everything_is_found_and_named_apart(places):
    findings = gather(places)
    assert [found.name for found in findings.networks] == ["mpcvit-0.3", "softmax"]
    assert [found.name for found in findings.searches] == ["search"]
    assert {(found.name, found.held.form) for found in findings.records} == {
        ("mpcvit-0.3", "plain"),
        ("mpcvit-0.3", "lowered"),
    }
    assert {found.name for found in findings.logs} == {"mpcvit-0.3"}
    kinds = {found.held.kind for found in findings.tables}
    assert kinds == set(TableKind) - {TableKind.SEARCHES}
    (reason,) = findings.skipped
    assert "broken" in reason


def test_what_was_named_must_be_readable(places, tmp_path):
    with pytest.raises(UserError, match="damaged"):
        gather([places[0] / "broken" / "model.safetensors"])
    with pytest.raises(UserError, match=r"unrelated.csv is no run, record or table"):
        gather([places[0] / "unrelated.csv"])
    with pytest.raises(UserError, match="there is no run"):
        gather([tmp_path / "nowhere"])
    assert gather([tmp_path]).is_empty


def test_names_are_as_short_as_they_can_be():
    assert name_apart([Path("a/x/seed-0"), Path("b/x/seed-0")]) == ["a/x", "b/x"]
    assert name_apart([Path("a/x"), Path("a/x")]) == ["x", "x"]  # two files of one run

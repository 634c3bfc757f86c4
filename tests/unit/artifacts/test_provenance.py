"""Tables of results as files."""

from mpcvit.artifacts.provenance import read_rows, write_rows


def test_rows_may_have_columns_that_the_first_lacks(tmp_path):
    write_rows(tmp_path / "rows.csv", [{"a": 1}, {"a": 2, "b": 3}])
    assert read_rows(tmp_path / "rows.csv") == [{"a": "1", "b": ""}, {"a": "2", "b": "3"}]

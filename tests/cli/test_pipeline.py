"""`mpcvit pipeline`: what it refuses and what it makes again; tests/docs/ goes the whole way."""

import pytest

from mpcvit.errors import UserError
from mpcvit.pipeline.kept import make_once
from tests.cli.test_commands import invoke
from tests.unit.test_config import TINY


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ratios", "1.5"), "a ratio must lie in [0, 1], not be 1.5"),
        (("--budgets", "soon"), "must be seconds"),
        (("--baselines", "quad"), "there is no baseline 'quad'"),
        (("--profile", "semi2k"), "names no network"),
    ],
)
def test_mistakes_are_told_before_anything_runs(tmp_path, arguments, message):
    refused = invoke("pipeline", TINY, "--runs", tmp_path, *arguments, code=2)
    assert message in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_from_something_else_is_made_again(tmp_path):
    path, made = tmp_path / "thing", []

    def make():
        made.append(path.write_text("x"))

    assert [make_once(path, {"from": source}, make) for source in "aab"] == [False, True, False]
    assert len(made) == 2

    def fail():
        raise UserError("stopped")

    with pytest.raises(UserError):
        make_once(path, {"from": "c"}, fail)
    assert not make_once(path, {"from": "b"}, make)  # a failed step leaves no mark
    assert not make_once(path, {"from": "b"}, make, lambda path: fail())  # nor is it loadable

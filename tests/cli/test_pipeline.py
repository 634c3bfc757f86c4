"""`mpcvit pipeline`: what it refuses and what it makes again; tests/docs/ goes the whole way."""

from pathlib import Path

import pytest

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.errors import UserError
from mpcvit.experiments.recipes import within
from mpcvit.experiments.store import Outcome, RunStore, Status, reuse_or_make
from mpcvit.pipeline.plan import Plan
from mpcvit.pipeline.run import Pipeline
from mpcvit.search.derive import derive_by_ratio
from tests.command import invoke
from tests.configs import TINY
from tests.searches import ALPHA, make_result


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

    def status(source, make=make, load=Path.read_text):
        return reuse_or_make(path, {"from": source}, make, load).status

    ran, reused = Status.RAN, Status.REUSED
    assert [status(source) for source in "aab"] == [ran, reused, ran]
    assert len(made) == 2

    def fail(*_):
        raise UserError("stopped")

    with pytest.raises(UserError):
        status("c", make=fail)
    assert status("b") is ran  # a failed step leaves no mark
    assert reuse_or_make(path, {"from": "b"}, make, Path.read_text).value == "x"
    refused = iter([True, False])  # what cannot be loaded is made again
    assert status("b", load=lambda path: fail() if next(refused) else "") is ran


def test_a_plan_by_budgets_prices_what_it_trains():
    plan = Plan(
        config=load_config(TINY, ["search.activation=token"]),
        profile=load_profile("semi2k-wan"),
        ratios=(),
        budgets_s=(12.5,),
        baselines=("mpcformer", "the_x-whole"),
    )
    names = ["softmax", "mpcformer", "the_x-whole", "mpcvit-12.5s-distilled"]
    assert [recipe.name for recipe in plan.networks] == names
    assert {kind.value for kind in plan.kinds} == {
        *("relu_softmax", "scaling", "softmax", "quad2", "the_x")
    }
    (found,) = plan.found
    assert found.derivation.budget_s == 12.5
    assert found.derivation.mlp_form is MlpForm.FUSED_RELU  # where GeLU is searched too
    assert Pipeline.count_steps(plan) == 2 + 1 + 4 * 4


def test_a_budget_derives_what_fits_it(monkeypatch):
    result = make_result(ALPHA)
    whole, none = (derive_by_ratio(result, ratio).seconds for ratio in (1.0, 0.0))
    budget = (whole + none) / 2
    found = Outcome(status=Status.RAN, value=result)
    monkeypatch.setattr(RunStore, "search", lambda self, recipe, seed: found)
    store = RunStore(
        config_file=TINY, overrides=(), dataset=None, runs=None, price=None, watch=None
    )
    derivation = within(budget).derivation
    architecture = store.derive(derivation, seed=0)
    assert none < result.latency.seconds(result.latency.price(architecture)) <= budget

"""`mpcvit pipeline`: what it refuses and what it makes again; tests/docs/ goes the whole way."""

import pytest

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import load_profile
from mpcvit.errors import UserError
from mpcvit.experiments.recipes import within
from mpcvit.experiments.run import Workshop
from mpcvit.pipeline.kept import make_once
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

    assert [make_once(path, {"from": source}, make) for source in "aab"] == [False, True, False]
    assert len(made) == 2

    def fail():
        raise UserError("stopped")

    with pytest.raises(UserError):
        make_once(path, {"from": "c"}, fail)
    assert not make_once(path, {"from": "b"}, make)  # a failed step leaves no mark
    assert not make_once(path, {"from": "b"}, make, lambda path: fail())  # nor is it loadable


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
    monkeypatch.setattr(Workshop, "search", lambda self, recipe, seed: result)
    workshop = Workshop(
        config_file=TINY, overrides=(), dataset=None, runs=None, price=None, watch=None
    )
    derivation = within(budget).derivation
    architecture = workshop.derive(derivation, seed=0)
    assert none < result.latency.seconds(result.latency.price(architecture)) <= budget

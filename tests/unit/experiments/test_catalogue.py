"""The catalogue: every recipe of every experiment fits every configuration we ship."""

from dataclasses import asdict
from pathlib import Path

import pytest

from mpcvit.artifacts.config import NormForm, load_config
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.experiments.catalogue import EXPERIMENTS, find_experiment
from mpcvit.experiments.published import published, published_table
from mpcvit.experiments.store import RunStore
from tests.configs import COMPLETE, TINY

# the paper's networks have layer norms, which their recipes may replace
CONFIGS = [path for path in COMPLETE if load_config(path).model.norm is NormForm.LAYER]


def make_store(config_file, **changes):
    values = {
        "config_file": config_file,
        "overrides": (),
        "dataset": None,
        "runs": Path("runs"),
        "price": estimate,
        "watch": None,
    }
    return RunStore(**{**values, **changes})


@pytest.mark.parametrize("config_file", CONFIGS, ids=lambda path: path.stem)
def test_every_recipe_configures_every_scale(config_file):
    store = make_store(config_file)
    for experiment in EXPERIMENTS:
        for recipe in (*experiment.networks, *experiment.searches):
            config = store.config(recipe.settings, recipe.heads, seed=3)
            assert config.seed == 3
            assert not recipe.heads or config.model.heads == recipe.heads


def test_three_heads_of_the_paper_take_a_width_of_258():
    cifar = next(path for path in CONFIGS if path.stem == "cifar10")
    pruned = [row for row in find_experiment("head-pruning").networks if row.heads]
    widths = [make_store(cifar).config(row.settings, row.heads, 0).model.width for row in pruned]
    assert widths == [256, 256, 258]


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.name)
def test_every_network_of_a_comparison_and_its_teacher_train_as_long(experiment):
    """The paper's kinds of attention train 300 epochs, its other networks 600."""
    cifar = next(path for path in CONFIGS if path.stem == "cifar10")
    store = make_store(cifar, length=experiment.length)
    recipes = [*experiment.networks, *(row.teacher for row in experiment.networks if row.teacher)]
    configs = [store.network_config(recipe, seed=0) for recipe in recipes]
    wanted = 300 if experiment.name == "attention-variants" else 600
    assert {config.train.epochs for config in configs} <= {wanted}
    assert {config.distill.epochs for config in configs} <= {wanted}
    folders = {store.network_folder(recipe, seed=2).name for recipe in recipes}
    assert folders <= {f"seed-2-epochs-{wanted}"}


def test_a_pipeline_trains_what_each_section_says():
    cifar = next(path for path in CONFIGS if path.stem == "cifar10")
    networks = find_experiment("trade-off").networks
    by_name = {row.name: make_store(cifar).network_config(row, 0) for row in networks}
    epochs = {name: config.train.epochs for name, config in by_name.items()}
    assert epochs["softmax"] == epochs["scaling"] == 300
    assert epochs["mpcvit-0.7"] == epochs["mpcformer-distilled"] == 600


def test_controls_of_distillation_are_taught_but_not_searched():
    rows = {row.name: row for row in find_experiment("distillation").networks}
    for name in ("scaling-distilled", "relu_softmax-distilled"):
        assert rows[name].derivation is None
        assert rows[name].teacher is rows["mpcvit-0.7-distilled"].teacher is not None


def test_an_ingredient_is_taken_out_alone():
    store = make_store(TINY.with_name("cifar10-poly.toml"), overrides=("model.head_dim_qk=8",))
    experiment = find_experiment("beyond-attention")
    models = {row.name: store.network_config(row, 0).model for row in experiment.networks}
    configured = asdict(models["configured"])
    changed = {
        name: {field for field, value in asdict(model).items() if value != configured[field]}
        for name, model in models.items()
    }
    assert changed["layer-norms"] == {"norm", "layer_norms"}
    assert changed["gelu"] == {"activation"}
    assert changed["all-tokens"] == {"layer_tokens"}
    assert changed["wide-queries"] == {"head_dim_qk"}
    assert changed["no-layer-norm"] == {"layer_norms"}
    every = {"norm", "layer_norms", "activation", "layer_tokens", "head_dim_qk"}
    assert changed["paper-scaling"] == every
    assert changed["paper-relu_softmax"] == {*every, "attention"}


def test_budgets_replace_those_of_the_catalogue_and_nothing_else():
    experiment = find_experiment("found")
    within = experiment.within((2.5, 3.5))
    papers = tuple(name for name in experiment.row_names if name.startswith("paper"))
    assert within.row_names == (*papers, "found-2.5s", "found-3.5s")
    assert [row.derivation.budget_s for row in within.networks[len(papers) :]] == [2.5, 3.5]
    with pytest.raises(UserError, match="distillation has no networks within seconds"):
        find_experiment("distillation").within((2.5,))


def test_names_are_unique_and_shared_rows_are_the_same_recipe():
    """Runs are kept by name, so one name must not stand for two recipes."""
    seen = {}
    for experiment in EXPERIMENTS:
        assert len(set(experiment.row_names)) == len(experiment.row_names)
        recipes = [*experiment.networks, *experiment.searches]
        for recipe in experiment.networks:
            recipes += [recipe.derivation.search] if recipe.derivation else []
            recipes += [recipe.teacher] if recipe.teacher else []
        for recipe in recipes:
            assert seen.setdefault(recipe.name, recipe) == recipe
    assert len({experiment.name for experiment in EXPERIMENTS}) == len(EXPERIMENTS)


def test_published_rows_exist():
    for data in published_table().values():
        for name, rows in data.items():
            assert set(rows) <= set(find_experiment(name).row_names)
    assert published("cifar100", "trade-off", "mpcvit-0.7").top1 == 75.38
    assert published("cifar10-tiny", "trade-off", "mpcvit-0.7").latency_s == 63.56


def test_unknown_names_are_refused_with_a_hint():
    with pytest.raises(UserError, match="did you mean 'trade-off'"):
        find_experiment("tradeoff")
    with pytest.raises(UserError, match="no row 'sofmax'; did you mean 'softmax'"):
        find_experiment("trade-off").only(["sofmax"])
    assert find_experiment("trade-off").only(["scaling"]).row_names == ("scaling",)
    assert load_config(TINY).name == "digits-tiny"

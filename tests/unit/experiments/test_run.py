"""Running an experiment: shared runs, resuming, failures and results."""

from contextlib import contextmanager
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import MlpForm
from mpcvit.artifacts.choices import ActivationGranularity
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.provenance import MODEL_FILE, read_rows, write_rows
from mpcvit.cost.estimate import estimate
from mpcvit.data import load_dataset
from mpcvit.errors import UserError
from mpcvit.experiments.catalogue import find_experiment
from mpcvit.experiments.recipes import SEARCH
from mpcvit.experiments.results import SearchRun, interval, write_search_results
from mpcvit.experiments.run import judge_by_test_images, run_experiment
from mpcvit.experiments.store import Outcome, RunStore, Status
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import ViT
from mpcvit.train.loop import DivergedError, StoppedError
from tests.configs import TINY
from tests.searches import ALPHA, MODEL, make_full_result, make_result
from tests.unit.train.test_loop import StopAt

QUICK = ("train.epochs=1", "search.epochs=1", "distill.epochs=1")


class Watcher:
    """Notes which runs were started, and may stop one of them."""

    def __init__(self):
        self.started, self.stop = [], ""

    @contextmanager
    def __call__(self, name):
        self.started.append(name)
        yield (StopAt(3),) if name == self.stop else ()


@pytest.fixture(scope="module")
def dataset():
    return load(load_config(TINY))


def load(config):
    model = config.model
    return load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )


def make_store(dataset, folder, watcher, overrides=QUICK):
    return RunStore(
        config_file=TINY,
        overrides=overrides,
        dataset=dataset,
        runs=folder,
        price=estimate,
        watch=watcher,
    )


@pytest.mark.long
def test_an_experiment_goes_on_where_it_was_stopped(dataset, tmp_path, monkeypatch, drawn):
    monkeypatch.setattr("mpcvit.train.loop.REPORT_EVERY_S", 0.0)
    experiment = find_experiment("trade-off").only(["softmax", "mpcvit-0.3-distilled"])
    watcher = Watcher()
    store = make_store(dataset, tmp_path / "runs", watcher)
    watcher.stop = "mpcvit-0.3-distilled, seed 0"
    with pytest.raises(StoppedError):
        run_experiment(experiment, store, [0], tmp_path)
    assert watcher.started == ["softmax, seed 0", "search, seed 0", "mpcvit-0.3-distilled, seed 0"]
    assert [row["network"] for row in read_rows(tmp_path / "trade-off-runs.csv")] == ["softmax"]

    watcher.started, watcher.stop = [], ""
    summaries, _ = run_experiment(experiment, store, [0], tmp_path)
    assert watcher.started == ["mpcvit-0.3-distilled, seed 0"]
    assert [one.network for one in summaries] == ["softmax", "mpcvit-0.3-distilled"]
    rows = read_rows(tmp_path / "trade-off-runs.csv")
    assert [row["distilled"] for row in rows] == ["False", "True"]
    assert rows[1]["heads"] == "2 scaling + 2 relu_softmax"
    assert (tmp_path / "trade-off.png").exists()
    shown = {line.get_label(): line.get_xydata().tolist() for line in drawn[-1].axes[0].lines}
    for one in summaries:
        name = one.network.replace("-0.3", "")
        assert shown[f"{name}, modelled"] == [[one.modelled_s, one.top1_mean]]
    layers = read_rows(tmp_path / "trade-off-architectures.csv")
    assert [(row["network"], row["layer"]) for row in layers] == [
        *(("softmax", str(layer)) for layer in range(2)),
        *(("mpcvit-0.3-distilled", str(layer)) for layer in range(2)),
    ]
    assert sum(row["attention"].count("relu_softmax") for row in layers) == 2
    alphas = read_rows(tmp_path / "trade-off-importance.csv")
    assert [(row["layer"], row["head"]) for row in alphas] == [
        (str(layer), str(head)) for layer in range(2) for head in range(2)
    ]
    assert {(row["search"], row["parameter"], row["token"]) for row in alphas} == {
        ("search", "alpha", "")
    }
    assert {row["epochs"] for row in rows} == {"1"}
    assert all(row["prices"].startswith("modelled from counts") for row in rows)
    epochs = read_rows(tmp_path / "trade-off-epochs.csv")
    assert [(row["network"], row["epoch"]) for row in epochs] == [
        ("softmax", "1"),
        ("mpcvit-0.3-distilled", "1"),
    ]
    for run, epoch in zip(rows, epochs, strict=True):
        assert float(run["top1"]) == pytest.approx(100 * float(epoch["test_top1"]), abs=0.01)

    watcher.started = []
    searches = find_experiment("latency-weight").only(["search"])
    _, means = run_experiment(searches, store, [0], tmp_path)
    assert watcher.started == []  # the networks' own search serves
    assert len(means["search"]) == 2
    assert (tmp_path / "latency-weight.png").exists()
    (line,) = drawn[-1].axes[0].lines
    assert line.get_ydata().tolist() == pytest.approx(means["search"], abs=1e-4)

    def changed(setting):
        return make_store(dataset, tmp_path / "runs", watcher, (*QUICK, setting))

    with pytest.raises(UserError, match=r"other settings: 'train.learning_rate' was 0.003"):
        run_experiment(experiment, changed("train.learning_rate=0.1"), [0], tmp_path)
    # what only the student reads leaves its teacher and its search as they are
    with pytest.raises(UserError, match=r"distilled.* other settings: 'distill.temperature' was 1"):
        run_experiment(experiment, changed("distill.temperature=2.0"), [0], tmp_path)
    with pytest.raises(UserError, match=r"search.* other settings: 'search.latency_weight' was"):
        run_experiment(searches, changed("search.latency_weight=0.1"), [0], tmp_path)
    teacher = tmp_path / "runs" / "digits-tiny" / "softmax" / "seed-0-epochs-1" / MODEL_FILE
    kept = Checkpoint.load(teacher)
    halved = jax.tree.map(lambda leaf: leaf / 2, kept.parameters)
    replace(kept, parameters=halved).save(teacher)
    with pytest.raises(UserError, match=r"distilled.* taught by another teacher than .*softmax"):
        run_experiment(experiment, store, [0], tmp_path)
    kept.save(teacher)
    part = load(load_config(TINY, ["data.train_images=200"]))
    for one in (experiment, searches):
        with pytest.raises(UserError, match=r"other settings: 'data_fingerprint' was"):
            run_experiment(one, make_store(part, tmp_path / "runs", watcher), [0], tmp_path)
    assert watcher.started == []


def test_a_network_that_diverges_is_a_row_and_is_not_tried_again(dataset, tmp_path, monkeypatch):
    calls = []

    def diverge(*_, **__):
        calls.append(1)
        raise DivergedError("the loss is not finite at step 3")

    monkeypatch.setattr("mpcvit.experiments.store.train", diverge)
    experiment = find_experiment("attention-variants").only(["relu"])
    store = make_store(dataset, tmp_path / "runs", Watcher())
    for _ in range(2):
        summaries, _ = run_experiment(experiment, store, [0], tmp_path)
    assert len(calls) == 1
    assert summaries[0].top1_mean == "fail"
    assert summaries[0].modelled_s > 0
    (row,) = read_rows(tmp_path / "attention-variants-runs.csv")
    assert row["top1"] == "fail"
    assert row["prices"] == summaries[0].prices == estimate(load_config(TINY).model).source


def test_rows_are_collected_without_training(dataset, tmp_path):
    experiment = find_experiment("trade-off").only(["scaling", "mpcvit-0.3"])
    watcher = Watcher()
    store = make_store(dataset, tmp_path / "runs", watcher)
    summaries, _ = run_experiment(experiment, store, [0], tmp_path, only_finished=True)
    assert summaries == []
    run_experiment(experiment.only(["scaling"]), store, [0], tmp_path)
    watcher.started = []
    summaries, _ = run_experiment(experiment, store, [0, 1], tmp_path, only_finished=True)
    assert watcher.started == []
    assert [(one.network, one.seeds) for one in summaries] == [("scaling", 1)]
    longer = make_store(dataset, tmp_path / "runs", watcher, (*QUICK, "distill.epochs=2"))
    assert run_experiment(experiment, longer, [0], tmp_path, only_finished=True)[0] == []


def test_rows_of_runs_that_are_gone_stay(dataset, tmp_path):
    experiment = find_experiment("trade-off").only(["scaling"])
    store = make_store(dataset, tmp_path / "runs", Watcher())
    run_experiment(experiment, store, [0], tmp_path)
    tables = [tmp_path / f"trade-off-{part}.csv" for part in ("runs", "epochs", "architectures")]
    lengths = []
    for table in tables:  # as if a softmax network had been trained on another machine
        rows = read_rows(table)
        lengths.append(len(rows))
        write_rows(table, [{**row, "network": "softmax"} for row in rows])
    summaries, _ = run_experiment(experiment, store, [0], tmp_path, only_finished=True)
    assert [(one.network, one.seeds) for one in summaries] == [("softmax", 1), ("scaling", 1)]
    assert summaries[0].top1_mean == summaries[1].top1_mean
    assert [len(read_rows(table)) for table in tables] == [2 * length for length in lengths]
    (pair,) = read_rows(tmp_path / "trade-off-differences.csv")
    assert (pair["network"], pair["other"], float(pair["points"])) == ("softmax", "scaling", 0)
    write_rows(tables[0], [{**row, "epochs": "7"} for row in read_rows(tables[0])])
    with pytest.raises(UserError, match=r"another epochs \(7 instead of 1\); .* --out"):
        run_experiment(experiment, store, [0], tmp_path, only_finished=True)


def test_searches_that_are_gone_stay(tmp_path):
    experiment = find_experiment("latency-weight")
    config = load_config(TINY)
    for seed, alpha in ((1, 0.7), (0, 0.5)):  # the file has them in order
        run = SearchRun(
            recipe=experiment.searches[0],
            config=replace(config, seed=seed),
            result=make_result([[alpha] * 3, [alpha / 2] * 3, [0.0] * 3]),
        )
        means = write_search_results(experiment, [run], tmp_path)
    (name,) = means
    assert means[name] == pytest.approx([0.6, 0.3, 0.0])
    rows = read_rows(tmp_path / "latency-weight-importance.csv")
    assert [(row["seed"], float(row["value"])) for row in rows if row["layer"] == "1"] == [
        *([("0", 0.25)] * 3),
        *([("1", 0.35)] * 3),
    ]


def test_every_share_of_a_search_is_a_row():
    result = make_full_result(MODEL)
    run = SearchRun(recipe=SEARCH, config=load_config(TINY), result=result)
    values = {
        (row["parameter"], row["layer"], row["head"]): row["value"]
        for row in run.to_importance_rows()
    }
    assert values[("alpha", 2, 1)] == result.alpha[2][1][0]
    assert values[("beta", 1, "")] == result.beta[1][0]
    assert values[("norm1", 0, "")] == result.norms[0][0]
    assert values[("norm2", 2, "")] == result.norms[2][1]
    assert values[("norm", "head", "")] == result.norms[-1][0]
    assert values[("more than 3 tokens", 1, "")] == result.tokens[1][0]
    learnt = (result.alpha, result.beta, result.norms, result.tokens)
    assert len(values) == sum(np.size(layer) for shares in learnt for layer in shares)


def test_thresholds_of_the_sweep_drop_different_tokens(monkeypatch):
    """Sigma is 0.75 unless a row has 0.5 or 0.9; a token of a larger beta keeps GeLU."""
    beta = ((0.4, 0.6, 0.8, 0.95, 1.0), (1.0,) * 5, (0.1,) * 5)
    result = make_result(ALPHA, beta, activation=ActivationGranularity.TOKEN)
    found = Outcome(status=Status.REUSED, value=result)
    monkeypatch.setattr(RunStore, "search", lambda store, recipe, seed: found)
    store = make_store(None, None, Watcher())
    dropped = {}
    for row in find_experiment("mpcvit-plus").networks:
        if "mpcvit-plus" in row.name:
            (forms, kept, gone) = (own.mlp for own in store.derive(row.derivation, 0).layers)
            assert (kept, gone) == (MlpForm.ACTIVATED, row.derivation.mlp_form)
            dropped[row.name] = [form for form in forms if form is not MlpForm.ACTIVATED]
    relu, none = MlpForm.FUSED_RELU, MlpForm.FUSED
    assert dropped == {
        f"mpcvit-plus{label}-{ratio}-distilled": forms
        for ratio in (0.3, 0.7)
        for label, forms in (
            *(("", [relu] * 2), ("-no-relu", [none] * 2)),
            *(("-sigma-0.5", [relu]), ("-sigma-0.9", [relu] * 3)),
        )
    }


def test_test_images_are_looked_at_after_the_choices(tmp_path):
    """Runs are judged by the validation split; `--test` adds what the test split says."""
    settings = (*QUICK, "data.validation_images=64")
    data = load(load_config(TINY, settings))
    experiment = find_experiment("attention-variants").only(["scaling", "softmax"])
    watcher = Watcher()
    store = make_store(data, tmp_path / "runs", watcher, settings)
    assert judge_by_test_images(experiment, store, [0], tmp_path) == []
    run_experiment(experiment.only(["scaling"]), store, [0], tmp_path)
    watcher.started = []
    (row,) = judge_by_test_images(experiment, store, [0, 1], tmp_path)
    assert watcher.started == []
    checkpoint = store.network(experiment.networks[-1], 0).value
    assert checkpoint is not None
    assert row["validation_top1"] == round(
        100 * checkpoint.provenance.metrics["validation_top1"], 2
    )
    assert row["test_images"] == len(data.test)
    right = predict_plainly(checkpoint, data.test) == np.asarray(data.test.labels)
    assert row["test_top1"] == round(100 * right.mean(), 2)
    table = tmp_path / "attention-variants-test.csv"
    write_rows(table, [{**row, "network": "softmax"} for row in read_rows(table)])
    judge_by_test_images(experiment, store, [0, 1], tmp_path)
    assert [own["network"] for own in read_rows(table)] == ["softmax", "scaling"]


def predict_plainly(checkpoint, split):
    mean, std = np.asarray(checkpoint.data.mean), np.asarray(checkpoint.data.std)
    images = jnp.asarray((np.asarray(split.images) / 255 - mean) / std, jnp.float32)
    vit = ViT(checkpoint.model, checkpoint.architecture)
    parameters = jax.tree.map(jnp.asarray, checkpoint.parameters)
    return np.argmax(vit.apply({"params": parameters}, images)[0], axis=-1)


def test_intervals_against_known_ones():
    """Student's t of three values by hand: 4.3027 * s / sqrt(3)."""
    low, high = interval([60.0, 61.0, 62.0], images=100)
    assert (low, high) == pytest.approx((61 - 4.3027 / 3**0.5, 61 + 4.3027 / 3**0.5), abs=1e-3)
    low, high = interval([0.0], images=10)
    assert low == 0
    assert high == pytest.approx(27.75, abs=0.01)  # Wilson's, of 0 in 10

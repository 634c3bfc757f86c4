"""`mpcvit pipeline --from`: a network of the user's own, fine-tuned and made cheaper."""

import json

import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.forms import NormForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.search import SearchResult
from mpcvit.codec import encode, spell
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.pipeline.plan import Plan
from tests.command import invoke
from tests.configs import TINY
from tests.models import small_checkpoint, small_config
from tests.unit.experiments.test_catalogue import make_store
from tests.your_model import write_model, write_photos

SMALL = {"WIDTH": 8, "HIDDEN": 8, "DEPTH": 1, "HEADS": 2, "SIZE": 8}
ONE = [f"--set={section}.epochs=1" for section in ("train", "search", "distill")]
FOUND = "mpcvit-60s-distilled"


def refuse(*_, **__):
    raise UserError("not here")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    write_model(folder, **SMALL)
    write_photos(folder, 120)
    return folder


@pytest.fixture
def go(folder, monkeypatch):
    """Run the pipeline without the parts that take long: lowering, and counting prices."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPCVIT_CACHE", str(folder / "cache"))
    monkeypatch.setattr(
        "mpcvit.pipeline.prices.measure_latency",
        lambda model, profile, kinds, progress: estimate(model, profile.network),
    )
    monkeypatch.setattr("mpcvit.pipeline.run.lower", refuse)

    def go(*more, source="my-vit", code=0):
        small = (*ONE, "--simulate", "--images", "1", "--profile", "semi2k-wan")
        return invoke("pipeline", "--from", source, "--data", "photos", *small, *more, code=code)

    return go


def test_every_network_starts_from_the_fine_tuned_one(go, folder):
    document = json.loads(go("--budget", "60s", "--json").stdout)
    steps = [(step["step"], step["subject"]) for step in document["steps"]]
    assert steps == [
        *(("fine-tune", "fine-tuned"), ("lower", "fine-tuned"), ("profile", "SEMI2K")),
        *(("search", "search"), ("derive", FOUND), ("retrain", FOUND), ("lower", FOUND)),
        *(("measure", "fine-tuned, plain"), ("measure", f"{FOUND}, plain")),
    ]
    runs = folder / "runs" / "finetune"
    tuned, found = (
        Checkpoint.load(runs / name / "seed-0-epochs-1" / "model.safetensors")
        for name in ("fine-tuned", FOUND)
    )
    assert tuned.model.qkv_bias
    assert tuned.architecture.layers[0].heads == (table.SOFTMAX,) * 2
    assert set(tuned.classes) == {path.name for path in (folder / "photos" / "train").iterdir()}
    digest = tuned.parameter_digest
    searched = SearchResult.load(runs / "search" / "seed-0-epochs-1").provenance
    assert tuned.provenance.started_from not in ("", digest)
    assert searched.started_from == digest
    assert (found.provenance.started_from, found.provenance.teacher) == (digest, digest)

    again = go("--budget", "60s").output.replace("\n", " ")
    assert "start: 20 arrays are taken over; new: none" in again
    assert "2 steps ran" in again  # lowering, which is refused here
    tuned_file = runs / "fine-tuned" / "seed-0-epochs-1" / "model.safetensors"
    refused = go("--budget", "60s", source=tuned_file, code=2).stderr.replace("\n", " ")
    assert "holds a run that started from other weights; remove it" in refused


def test_a_budget_that_nothing_meets_is_refused_before_the_search(go, folder):
    refused = go("--budget", "1ms", "--runs", "hurry", code=2).stderr.replace("\n", " ")
    assert "no network meets a budget of 0.001 s: the cheapest possible, with scaling" in refused
    assert "give a larger --budget, or add --set search.activation=layer" in refused
    assert not (folder / "hurry" / "finetune" / "search").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a configuration, as mpcvit configs lists them, or your model with --from"),
        (("finetune",), "section 'model' is missing; write one, or start from a trained model"),
        (("--from", "my-vit", "--budget", "soon"), "--budget must be seconds"),
        (("--from", "my-vit"), "no data set is named"),
        (("--from", "my-vit", "--data", "photos/train/one"), "pictures without labels"),
        (("--from", "my-vit", "--data", "photos/train"), "pictures without labels"),
        (
            ("--from", "my-vit", "--data", "photos", "--set", "model.classes=7"),
            "the data has 10 classes, but model.classes is 7: leave model.classes out",
        ),
        (
            ("--from", "my-vit", "--data", "photos", "--set", "model.width=12"),
            "the checkpoint to start from has model.width = 8",
        ),
        (("--from", "photos", "--data", "photos"), "photos"),
    ],
)
def test_mistakes_are_one_sentence(folder, monkeypatch, arguments, message):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPCVIT_CACHE", str(folder / "cache"))
    refused = invoke("pipeline", *arguments, "--runs", "none", code=2).stderr
    assert message in refused.replace("\n", " ")
    assert not (folder / "none").exists()


def test_the_teacher_keeps_its_norms_where_its_students_get_others():
    own = small_config()
    start = small_checkpoint(own, Architecture.uniform(table.SOFTMAX, depth=2, heads=3))
    changes = ["model.norm=batch", "model.clip=4.0", "data.mean=[0, 0, 0]", "data.std=[1, 1, 1]"]
    settings = [f"model.{key}={spell(value)}" for key, value in encode(own).items() if value != {}]
    store = make_store(TINY, overrides=(*settings, *changes))
    plan = Plan(
        config=store.config((), 0, seed=0),
        profile=load_profile("semi2k-wan"),
        ratios=(),
        budgets_s=(9.0,),
        start=start,
    )
    teacher, (found,) = plan.teacher, plan.found
    assert store.network_config(teacher, seed=0).model == own
    assert store.network_config(found, seed=0).model.norm is NormForm.BATCH
    assert (found.start, found.teacher, found.derivation.search.start) == (teacher,) * 3
    assert plan.networks == (teacher, found)

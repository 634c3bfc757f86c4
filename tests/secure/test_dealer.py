"""Private runs through a dealer give what runs with the first-party dealer give."""

import json
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Limits, load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.bench import dealer as bench
from mpcvit.bench.networks import random_checkpoint
from mpcvit.classifier import Classifier
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.party.gateway import Gateway, Recorder, ScriptFollower, zeros
from mpcvit.dealer.script import Kind, Script, Step
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.lowering.lower import lower
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.card import ModelCard
from mpcvit.secure.dealing import endpoint as dealer_place
from mpcvit.secure.dealing import party as dealing
from mpcvit.secure.dealing import rehearsal
from mpcvit.secure.probe import measure_function
from mpcvit.secure.spu.compile import compile_network
from mpcvit.secure.spu.engine import DealerSettings
from tests.models import random_pixels, rows_of_every_kind, small_checkpoint, small_config, tiny
from tests.tolerances import FXP18, FXP18_EXP, FXP26, assert_close
from tests.unit.dealer.conftest import GOLDEN

K = table
FIRST_PARTY, DEALER = load_profile("semi2k"), load_profile("semi2k-dealer")


def everything(config):
    """A layer of every attention kind and every MLP form."""
    forms = tuple(list(MlpForm)[index % len(MlpForm)] for index in range(config.tokens))
    heads = tuple(rows_of_every_kind(config.tokens))
    return Architecture(layers=(LayerArchitecture(heads=heads, mlp=forms),))


@pytest.fixture(autouse=True)
def forget_scripts():
    rehearsal._kept.in_memory.clear()


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, {"ring_bits": 128, "fraction_bits": 26}])
def test_every_attention_kind_and_mlp_form(changes):
    """Within the tolerance of the first-party dealer; see test_networks, and test_lowered."""
    config = small_config(depth=1)
    checkpoint, pixels = small_checkpoint(config, everything(config)), random_pixels(config, 1)
    plain = Classifier(checkpoint)
    found = mpcvit.run(
        checkpoint, pixels, replace(DEALER, **changes), reveal="logits", simulate=True
    )
    assert_close(found.logits, plain(plain.preprocess(list(pixels))), FXP18_EXP)


def _never(*_):
    raise DealerError("this was rehearsed")


def test_the_same_as_with_the_first_party_and_rehearsed_once(monkeypatch):
    checkpoint, pixels = tiny()
    expected = mpcvit.run(
        checkpoint, pixels, FIRST_PARTY, batch_size=2, reveal="logits", simulate=True
    )
    found = mpcvit.run(checkpoint, pixels, DEALER, batch_size=2, reveal="logits", simulate=True)
    assert_close(found.logits, expected.logits, FXP18)
    record, offline = found.record, found.record.offline
    assert (record.exchanges, record.sent_bytes) == (
        expected.record.exchanges,
        expected.record.sent_bytes,
    )
    assert offline is not None
    assert offline.received_bytes > offline.held_bytes > 0  # two batches, of two and one
    assert expected.record.offline is None
    assert not record.notes or "INSECURE" not in " ".join(record.notes)
    rehearsal._kept.in_memory.clear()
    monkeypatch.setattr(rehearsal, "_rehearse_stage", _never)  # scripts were kept on disk
    mpcvit.run(checkpoint, pixels, DEALER, batch_size=2, reveal="logits", simulate=True)


@pytest.fixture(scope="module")
def program():
    """Lowered for a dealer, with its script for one image at a time."""
    checkpoint, pixels = tiny()
    lowered = lower(checkpoint, list(pixels), DEALER, error_budget=1.0)
    return rehearsal.with_script(lowered, DEALER, reveal=Reveal.LOGITS)


@pytest.fixture
def no_rehearsal(monkeypatch):
    monkeypatch.setattr(rehearsal, "_rehearse", _never)


def test_a_program_carries_its_script(program, no_rehearsal, tmp_path):
    program.save(tmp_path / "program")
    loaded = SecureProgram.load(tmp_path / "program")
    assert loaded.public.scripts == program.public.scripts
    assert len(loaded.public.scripts) == 3  # for few images; for many, and their set-up
    assert loaded.digest() == program.changed(scripts={}).digest()
    _, pixels = tiny()
    found = mpcvit.run(loaded, pixels[:2], DEALER, reveal="logits", simulate=True)
    assert_close(found.logits, program(program.preprocess(list(pixels[:2]))), FXP26)
    script, *_ = loaded.public.scripts.values()
    assert found.record.offline.held_bytes == script.answer_bytes


@pytest.mark.parametrize(("batch_size", "fraction_bits"), [(2, 26), (1, 22)])
def test_where_the_script_does_not_fit_the_program_is_rehearsed(
    program, no_rehearsal, batch_size, fraction_bits
):
    engine = replace(program.engine, fraction_bits=fraction_bits)
    other, (_, pixels) = program.changed(engine=engine), tiny()
    with pytest.raises(DealerError, match="this was rehearsed"):
        mpcvit.run(other, pixels[:2], DEALER, batch_size=batch_size, reveal="logits", simulate=True)


def test_a_class_alone_is_rehearsed_too(program):
    """Its last stage reads random numbers beside the logits."""
    bare, (_, pixels) = program.changed(scripts={}), tiny()
    found = mpcvit.run(bare, pixels[:2], DEALER, simulate=True)
    expected = program(program.preprocess(list(pixels[:2]))).argmax(axis=1)
    assert found.predictions == tuple(program.classes[index] for index in expected)


def test_without_a_dealer_there_is_no_script(program):
    bare = program.changed(scripts={})
    assert rehearsal.with_script(bare, FIRST_PARTY) is bare


def test_a_damaged_script_is_not_loaded(program, tmp_path):
    program.save(tmp_path / "program")
    place = tmp_path / "program" / "program.json"
    document = json.loads(place.read_text())
    public = document["public"]
    (name, own), *_ = public["scripts"].items()
    other = Script((Step(kind=Kind.MUL, width=8, shape=(3,)),)).encoded()
    for changed in ({**own, "steps": other["steps"]}, {**own, "steps": "AA=="}, {}, None):
        damaged = {**public, "scripts": {name: changed}}
        place.write_text(json.dumps({**document, "public": damaged}))
        with pytest.raises(UserError, match=r"script"):
            SecureProgram.load(tmp_path / "program")
    script = Script.decoded(other, "here")
    with pytest.raises(UserError, match="more than 16 scripts"):
        program.changed(scripts={str(index): script for index in range(17)})


def random_bits(step):
    """As many ranges as a step has, for the operation that would give their masks away."""
    return [
        Step(kind=Kind.RANDOM_BIT, width=step.width, shape=(length // step.width,))
        for length in step.operand_bytes
    ]


def made_up(script):
    """Scripts that a model owner might claim to be the program's, and where they go wrong."""
    middle = len(script.steps) // 2
    step, before, after = script.steps[middle], script.steps[:middle], script.steps[middle + 1 :]
    larger = replace(step, shape=(step.shape[0] + 1, *step.shape[1:]))
    return {
        "reveals masks": ((*before, *random_bits(step), *after), "SPU asks for another", middle),
        "too large": ((*before, larger, *after), "SPU asks for another", middle),
        "too short": (script.steps[:-1], "has 1 inferences, and no number 1", -1),
        "too long": ((*script.steps, step), "did not ask for what the script", len(script.steps)),
        "empty": ((), "of no steps", 0),
    }


@pytest.mark.parametrize("name", ["reveals masks", "too large", "too short", "too long", "empty"])
def test_a_script_that_is_not_the_programs(program, name, monkeypatch):
    """Whatever the model owner claims and does itself, the data owner's SPU goes no further."""
    (key, script), *_ = program.public.scripts.items()  # for few images
    steps, message, reached = made_up(script)[name]
    answered = []

    class Watched(ScriptFollower):
        """The model owner's gateway answers whatever comes; the data owner's is as it is."""

        def __call__(self, call):
            if self._supply is not None:
                return zeros(call.step)
            buffers = super().__call__(call)
            if self._job is not None:
                answered.append(call.step)
            return buffers

        def require_end(self, inference):
            if self._supply is None:
                super().require_end(inference)

    monkeypatch.setattr(dealing, "ScriptFollower", Watched)
    wrong = program.changed(scripts={key: Script(tuple(steps))})
    profile = replace(DEALER, limits=Limits(connect_s=10.0, silence_s=20.0))
    with pytest.raises(DealerError, match=message):
        mpcvit.run(wrong, tiny()[1][:1], profile, reveal="logits", simulate=True)
    assert answered == list(script.steps[:reached])


def test_another_spu_is_refused(monkeypatch):
    """At the start, before anything is listened to; and wherever a runtime would be started."""
    monkeypatch.setattr(dealer_place, "SPU_VERSION", "0.9.6")
    place = dealer_place.DealerEndpoint(address="127.0.0.1:1", key="", tls="")
    with Gateway(Recorder()) as gateway:
        for start in (
            lambda: place.client(patience_s=1.0),
            lambda: DealerSettings(gateway=gateway, public_pem="").configure(None, 0),
        ):
            with pytest.raises(UserError, match=r"a dealer needs spu 0.9.6, .* here is 0.9.5"):
                start()


def test_single_operations_cost_the_same_with_a_dealer_and_without():
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 5), (5, 7), (3, 7))]

    def function(x, w, y):
        return jax.nn.relu(x @ w - y) * y

    dealt, own = (measure_function(function, inputs, one) for one in (DEALER, FIRST_PARTY))
    x, w, y = inputs
    assert_close(dealt.output, np.maximum(x @ w - y, 0) * y, FXP18)
    assert dealt.cost.exchanges == own.cost.exchanges > 0
    assert dealt.cost.sent_bytes == own.cost.sent_bytes


@pytest.mark.long
def test_bench_measures_both_forms_both_dealers_and_the_dealer_alone(program, monkeypatch):
    checkpoint, _ = tiny()
    monkeypatch.setattr(bench, "run", partial(mpcvit.run, reveal="logits", simulate=True))
    measure = partial(bench.bench_dealer, rounds=1, jobs=2, progress=lambda *_: None)
    rows = measure((checkpoint, program), DEALER, workers=(1, 2))
    assert [row["form"] for row in rows] == ["plain"] * 4 + ["lowered"] * 4
    for first, third, one, two in (rows[:4], rows[4:]):
        assert "INSECURE" in first["warning"]
        assert not any(row["warning"] for row in (third, one, two))
        assert (first["of_first_party"], first["offline_mb"]) == (1.0, "")
        assert first["exchanges"] == third["exchanges"]
        assert third["offline_mb"] == third["held_mb"] == one["offline_mb"] > 0
        assert (one["workers"], two["workers"]) == (1, 2)
        assert min(one["jobs_per_minute"], two["jobs_per_core_minute"]) > 0
    assert len({tuple(row) for row in rows}) == 1  # columns of one table
    with pytest.raises(UserError, match="must have a dealer"):
        measure((checkpoint,), FIRST_PARTY, workers=(1,))


@pytest.mark.long
def test_a_layer_of_deit_small_asks_for_what_the_dealers_limits_were_chosen_by():
    """`tests/unit/dealer/test_jam.py` holds twelve of these against the limits."""
    model = ModelConfig(
        image_size=224, patch_size=16, classes=1000, depth=1, heads=6, width=384, mlp_ratio=4.0
    )
    architecture = Architecture.uniform(table.SOFTMAX, depth=1, heads=6)
    profile = load_profile("semi2k-dealer")
    card = ModelCard.of(random_checkpoint(model, architecture))
    script = rehearsal.scripts_of(compile_network(card, profile, 1), profile).inference
    assert script == Script.from_bytes((GOLDEN / "deit_small_layer.script").read_bytes())

"""Private runs through a dealer give what runs with the first-party dealer give."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import mpcvit
from mpcvit.arch import Architecture, AttentionKind, LayerArchitecture, MlpForm
from mpcvit.bench import dealer as bench
from mpcvit.classifier import Classifier
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.gateway import Gateway, Recorder
from mpcvit.dealer.script import Kind
from mpcvit.errors import UserError
from mpcvit.profile import load_profile
from mpcvit.runtime import desk, rehearsal
from mpcvit.runtime.probe import probe
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import FXP18, FXP18_EXP, assert_close

K = AttentionKind
FIRST_PARTY, DEALER = load_profile("semi2k"), load_profile("semi2k-dealer")
TOKENS = small_config().tokens
ROWS = tuple(list(K)[index % len(K)] for index in range(TOKENS))
EVERYTHING = Architecture(
    layers=(
        LayerArchitecture(
            heads=(K.SCALING, ROWS, tuple(reversed(ROWS))),
            mlp=tuple(list(MlpForm)[index % len(MlpForm)] for index in range(TOKENS)),
        ),
    )
)


@pytest.fixture(autouse=True)
def forget_scripts():
    rehearsal._in_memory.clear()


@pytest.mark.long
@pytest.mark.parametrize("changes", [{}, {"ring_bits": 128, "fraction_bits": 26}])
def test_every_attention_kind_and_mlp_form(changes):
    """Within the tolerance of the first-party dealer; see test_networks."""
    config = small_config(depth=1)
    checkpoint, pixels = small_checkpoint(config, EVERYTHING), random_pixels(config, 1)
    plain = Classifier(checkpoint)
    found = mpcvit.run(checkpoint, pixels, replace(DEALER, **changes), simulate=True)
    assert_close(found.logits, plain(plain.preprocess(list(pixels))), FXP18_EXP)


def tiny():
    config = small_config(depth=1)
    architecture = Architecture.uniform(K.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)
    return small_checkpoint(config, architecture), random_pixels(config, 3)


def test_the_same_as_with_the_first_party_and_rehearsed_once(monkeypatch):
    checkpoint, pixels = tiny()
    expected = mpcvit.run(checkpoint, pixels, FIRST_PARTY, batch_size=2, simulate=True)
    found = mpcvit.run(checkpoint, pixels, DEALER, batch_size=2, simulate=True)
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
    rehearsal._in_memory.clear()
    monkeypatch.setattr(rehearsal, "_rehearse", None)  # the script was kept on disk
    mpcvit.run(checkpoint, pixels, DEALER, batch_size=2, simulate=True)


def test_a_script_that_is_not_the_programs_is_noticed(monkeypatch):
    """SPU is held to what was agreed on, whatever that was: no wrong answer."""
    checkpoint, pixels = tiny()
    rehearse = rehearsal._rehearse

    def other(*arguments):
        script = rehearse(*arguments)
        place = next(i for i, step in enumerate(script.steps) if step.kind is Kind.MUL)
        step = script.steps[place]
        wrong = replace(step, shape=(step.shape[0] + 1,))
        return type(script)((*script.steps[:place], wrong, *script.steps[place + 1 :]))

    monkeypatch.setattr(rehearsal, "_rehearse", other)
    monkeypatch.setattr(rehearsal, "_read", lambda path: None)
    monkeypatch.setattr(rehearsal, "_keep", lambda path, script: script)
    with pytest.raises(DealerError, match="SPU asks for another Mul than step"):
        mpcvit.run(checkpoint, pixels[:1], DEALER, simulate=True)


def test_another_spu_is_refused(monkeypatch):
    monkeypatch.setattr(desk, "SPU_VERSION", "0.9.6")
    with (
        Gateway(Recorder()) as gateway,
        pytest.raises(UserError, match=r"a dealer needs spu 0.9.6, .* here is 0.9.5"),
    ):
        desk.Desk(gateway=gateway, public_pem="").configure(None, 0)


def test_single_operations_are_measured_without_a_dealer():
    with pytest.raises(UserError, match="without a dealer"):
        probe(lambda x: x, [np.ones(3, np.float32)], DEALER)


def test_bench_measures_both_dealers_and_the_dealer_alone(monkeypatch):
    checkpoint, _ = tiny()
    monkeypatch.setattr(bench, "run", partial(mpcvit.run, simulate=True))
    rows = bench.bench_dealer(
        checkpoint, DEALER, rounds=1, jobs=2, workers=(1,), progress=lambda *_: None
    )
    first, third, alone = rows
    assert first["of_first_party"] == 1.0
    assert first["exchanges"] == third["exchanges"]
    assert third["offline_mb"] == third["held_mb"] == alone["offline_mb"] > 0
    assert alone["jobs_per_core_minute"] > 0
    assert len({tuple(row) for row in rows}) == 1
    with pytest.raises(UserError, match="must have a dealer"):
        bench.bench_dealer(
            checkpoint, FIRST_PARTY, rounds=1, jobs=1, workers=(1,), progress=lambda *_: None
        )

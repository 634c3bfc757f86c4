"""Private runs through a dealer give what runs with the first-party dealer give."""

from dataclasses import replace

import numpy as np
import pytest

import mpcvit
from mpcvit.arch import Architecture, AttentionKind, LayerArchitecture, MlpForm
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.script import Kind
from mpcvit.errors import UserError
from mpcvit.profile import load_profile
from mpcvit.runtime import desk, rehearsal
from mpcvit.runtime.probe import probe
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import FXP18_EXP, assert_close

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


@pytest.mark.parametrize("changes", [{}, {"ring_bits": 128, "fraction_bits": 26}])
def test_every_attention_kind_and_mlp_form(changes):
    config = small_config(depth=1)
    checkpoint, pixels = small_checkpoint(config, EVERYTHING), random_pixels(config, 3)
    expected = mpcvit.run(
        checkpoint, pixels, replace(FIRST_PARTY, **changes), batch_size=2, simulate=True
    )
    found = mpcvit.run(checkpoint, pixels, replace(DEALER, **changes), batch_size=2, simulate=True)
    assert_close(found.logits, expected.logits, FXP18_EXP)
    record, offline = found.record, found.record.offline
    assert record.exchanges == expected.record.exchanges
    assert offline is not None
    assert offline.received_bytes > offline.held_bytes > 0
    assert not record.notes or "INSECURE" not in " ".join(record.notes)
    assert expected.record.offline is None


def test_a_lowered_program():
    config = small_config(depth=1, width=12)
    architecture = Architecture.uniform(K.RELU_SOFTMAX, depth=1, heads=3, mlp=MlpForm.ACTIVATED)
    checkpoint = small_checkpoint(config, architecture)
    program = mpcvit.lower(checkpoint, list(random_pixels(config, 16)), "semi2k")
    assert program.engine.reuse_weight_masks
    pixels = random_pixels(config, 1)
    expected = mpcvit.run(program, pixels, "semi2k", simulate=True).logits
    found = mpcvit.run(program, pixels, "semi2k-dealer", simulate=True)
    assert_close(found.logits, expected, FXP18_EXP)
    assert not found.record.profile["reuse_weight_masks"]


def tiny():
    config = small_config(depth=1)
    architecture = Architecture.uniform(K.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)
    return small_checkpoint(config, architecture), random_pixels(config, 1)


def test_a_script_is_rehearsed_once(cache_folder, monkeypatch):
    checkpoint, pixels = tiny()
    mpcvit.run(checkpoint, pixels, DEALER, simulate=True)
    kept = list((cache_folder / "scripts").iterdir())
    assert kept
    rehearsal._in_memory.clear()
    monkeypatch.setattr(rehearsal, "_rehearse", None)
    mpcvit.run(checkpoint, pixels, DEALER, simulate=True)


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
        mpcvit.run(checkpoint, pixels, DEALER, simulate=True)


def test_another_spu_is_refused(monkeypatch):
    checkpoint, pixels = tiny()
    monkeypatch.setattr(desk, "SPU_VERSION", "0.9.6")
    monkeypatch.setattr(rehearsal, "_read", lambda path: None)
    with pytest.raises(UserError, match=r"a dealer needs spu 0.9.6, .* here is 0.9.5"):
        mpcvit.run(checkpoint, pixels, DEALER, simulate=True)


def test_single_operations_are_measured_without_a_dealer():
    with pytest.raises(UserError, match="without a dealer"):
        probe(lambda x: x, [np.ones(3, np.float32)], DEALER)

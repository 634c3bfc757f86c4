"""Compiled stages: one for all that are identical, kept on disk, and never trusted when damaged."""

import subprocess
import sys
import threading
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.profile import load_profile
from mpcvit.bench.lowered import lower_with_plan, plan_for, read_reference
from mpcvit.cli.bench.tables import EXAMPLES
from mpcvit.kinds import table
from mpcvit.secure.card import ModelCard
from mpcvit.secure.spu import compile as compiled
from mpcvit.secure.spu.compile import compile_function, compile_network
from tests.models import small_checkpoint, small_config

ONE_LAYER = Architecture.uniform(table.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)


@pytest.fixture(autouse=True)
def empty(monkeypatch, tmp_path):
    monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path / "cache"))
    forget(monkeypatch)
    return tmp_path / "cache" / "compiled"


def forget(monkeypatch):
    """Leave nothing but what is on disk, as if a new process had started."""
    monkeypatch.setattr(compiled, "_programs", {})
    for kept in (compiled._kept_code, compiled._kept_programs):
        monkeypatch.setattr(kept, "in_memory", {})


@pytest.fixture
def count(monkeypatch):
    compilations = []
    compile_ = compiled._Source.compile

    def counted(source):
        compilations.append(source.key)
        return compile_(source)

    monkeypatch.setattr(compiled._Source, "compile", counted)
    return compilations


def double(x):
    return x + x


def test_kept_and_read_again(empty, count, monkeypatch):
    x = np.ones((2, 3), np.float32)
    code = compile_function(double, x)
    assert b"pphlo.add" in code
    assert compile_function(lambda y: y + y, x) == code  # a name is no content
    assert len(count) == 1
    forget(monkeypatch)
    assert compile_function(double, x) == code
    assert len(count) == 1
    assert len(list(empty.iterdir())) == 1
    compile_function(double, np.ones((3, 2), np.float32))
    assert len(count) == 2


def test_a_damaged_entry_is_made_anew(empty, count, monkeypatch):
    x = np.ones((2, 3), np.float32)
    code = compile_function(double, x)
    (entry,) = empty.iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    forget(monkeypatch)
    assert compile_function(double, x) == code
    assert len(count) == 2


def test_nowhere_to_keep_it(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path / "file"))
    assert b"pphlo.add" in compile_function(double, jnp.ones(3))


def test_identical_blocks_are_compiled_once(count):
    scaling, relu = (
        LayerArchitecture(heads=(kind,) * 3, mlp=MlpForm.FUSED)
        for kind in (table.SCALING, table.RELU)
    )
    config = small_config(depth=3)
    architecture = Architecture(layers=(scaling, relu, scaling))
    card = ModelCard.of(small_checkpoint(config, architecture))
    program = compile_network(card, load_profile("semi2k"), 1)
    assert len(count) == 5  # embedding, two blocks of three, head, what is revealed
    assert [stage.name for stage in program.stages] == [
        *("embedding", "block 0", "block 1", "block 2", "head", "reveal")
    ]
    assert program.stages[1].code == program.stages[3].code
    assert program.output_shape == (1, config.classes)
    other = compile_network(card, load_profile("semi2k"), 2)
    assert other.digest() != program.digest()
    assert program.digest() == compile_network(card, load_profile("cheetah"), 1).digest()


@pytest.fixture(scope="module")
def lowered():
    """A network whose blocks have approximations of the same form with other constants."""
    config = small_config(depth=4)
    architecture = Architecture.uniform(table.RELU_SOFTMAX, depth=4, heads=3)
    plan = plan_for(architecture, [read_reference(path) for path in EXAMPLES])
    program = lower_with_plan(plan, config, architecture, choose_engine(load_profile("semi2k")))
    return program.changed(plan={**program.plan, **_moved(program.plan)})


def _moved(plan):
    """Block 1's approximations for block 2, on intervals that are a little wider."""
    return {
        label.replace("block 1 ", "block 2 "): replace(own, **_wider(own))
        for label, own in plan.items()
        if label.startswith("block 1 ")
    }


def _wider(own):
    return {"bound": 1.01 * own.bound} if hasattr(own, "bound") else {"high": 1.01 * own.high}


def test_blocks_that_differ_in_constants_are_compiled_once(lowered, count):
    program = compile_network(ModelCard.of(lowered), load_profile("semi2k"), 1)
    first, second = program.stages[2:4]
    assert (first.name, second.name) == ("block 1", "block 2")
    assert first.code == second.code
    assert first.constants != second.constants
    assert len(count) == len({stage.code for stage in program.stages})
    other = replace(second, constants=first.constants)
    swapped = replace(program, stages=(*program.stages[:3], other, *program.stages[4:]))
    assert swapped.digest() != program.digest()  # parties compare constants too


def test_a_program_is_read_again_without_a_trace(lowered, empty, monkeypatch):
    card, profile = ModelCard.of(lowered), load_profile("semi2k")
    program = compile_network(card, profile, 1)
    forget(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "stage_network", None)
        assert compile_network(card, profile, 1) == program
    forget(monkeypatch)
    (entry,) = (empty.parent / "programs").iterdir()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    assert compile_network(card, profile, 1) == program
    monkeypatch.setattr(compiled, "_OWN_TEXT", "a later version")
    compile_network(card, profile, 1)
    assert len(list((empty.parent / "programs").iterdir())) == 2


def test_parties_in_one_process_trace_a_network_once(monkeypatch):
    traced, stage_network = [], compiled.stage_network

    def counted(*arguments):
        traced.append(arguments)
        return stage_network(*arguments)

    monkeypatch.setattr(compiled, "stage_network", counted)
    checkpoint = small_checkpoint(small_config(depth=1), ONE_LAYER)
    profile, found = load_profile("semi2k"), []

    def take_part():
        card = ModelCard.from_dict(ModelCard.of(checkpoint).to_dict())  # as from a peer
        found.append(compile_network(card, profile, 1))

    parties = [threading.Thread(target=take_part) for _ in range(2)]
    for party in parties:
        party.start()
    for party in parties:
        party.join()
    assert len(traced) == 1
    assert found[0] == found[1]
    compile_network(ModelCard.of(checkpoint), replace(profile, ring_bits=128), 1)
    compile_network(ModelCard.of(checkpoint), profile, 2)
    assert len(traced) == 3


def test_a_process_keeps_few_networks(monkeypatch):
    monkeypatch.setattr(compiled, "_MOST_PROGRAMS", 2)
    card = ModelCard.of(small_checkpoint(small_config(depth=1), ONE_LAYER))
    for batch in (1, 2, 3):
        compile_network(card, load_profile("semi2k"), batch)
    shapes = [program.input_shape for program in compiled._programs.values()]
    assert [batch for batch, *_ in shapes] == [2, 3]


def test_a_party_imports_no_scipy():
    code = "import sys, mpcvit.secure.parties.party; sys.exit('scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)

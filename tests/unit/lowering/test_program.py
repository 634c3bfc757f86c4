"""The artifact: what is saved is what is loaded, and nothing else is."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.engine import choose_engine, read_engine
from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.artifacts.protocols import PROTOCOLS, Truncation
from mpcvit.classifier import Classifier
from mpcvit.data import Split
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.lowering import ERROR_BUDGET
from mpcvit.lowering.calibrate import LEAST_SAFE_BITS, relative_error, require_safe, safe_bits
from mpcvit.lowering.emulate import emulate
from mpcvit.lowering.fit_plan import search_plan
from mpcvit.lowering.fitting import fit_inverse_root
from mpcvit.lowering.lower import leaving, lower, products_of
from mpcvit.lowering.program import SecureProgram
from mpcvit.lowering.sites import HEAD_NORM, count_exchanges
from mpcvit.secure.run import default_profile_for
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import F32

CONFIG = small_config(mlp_ratio=1.2)
ARCHITECTURE = Architecture.uniform(table.RELU_SOFTMAX, depth=2, heads=3)


@pytest.fixture(scope="module")
def program():
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    return lower(checkpoint, list(random_pixels(CONFIG, 64)), "semi2k")


def test_emulation_is_near_the_network(program):
    plain = Classifier(small_checkpoint(CONFIG, ARCHITECTURE))
    images = plain.preprocess(list(random_pixels(CONFIG, 64)))
    assert relative_error(program(images), plain(images)) <= ERROR_BUDGET


def test_a_program_of_one_protocol_names_the_way_to_another(program):
    with pytest.raises(UserError, match=r"for SEMI2K, and cannot run under CHEETAH; take"):
        program.engine.apply(load_profile("cheetah"))


def test_who_names_no_profile(program, tmp_path):
    """Gets no dealer unless it names one, or brings a program that only SEMI2K can run."""
    program.save(tmp_path / "program")
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    for model in (program, tmp_path / "program"):
        assert default_profile_for(model) == default_profile_for(model, "c:9100") == "semi2k-dealer"
    portable = program.changed(engine=choose_engine(load_profile("cheetah")))
    for model in (checkpoint, portable, tmp_path / "model.safetensors"):
        assert (default_profile_for(model), default_profile_for(model, "c:9100")) == (
            "cheetah",
            "semi2k-dealer",
        )


@pytest.mark.long
def test_the_error_budget_is_of_the_whole_network_and_kept():
    checkpoint, pixels = small_checkpoint(CONFIG, ARCHITECTURE), list(random_pixels(CONFIG, 64))
    plain = Classifier(checkpoint)
    images = plain.preprocess(pixels)
    programs = [lower(checkpoint, pixels, error_budget=budget) for budget in (0.1, 1e-3)]
    for budget, own in zip((0.1, 1e-3), programs, strict=True):
        assert relative_error(own(images), plain(images)) <= budget
        assert own.calibration.error <= budget
    loose, tight = programs
    assert count_exchanges(loose.plan) < count_exchanges(tight.plan)
    with pytest.raises(UserError, match="must be positive"):
        lower(checkpoint, pixels, error_budget=0)


def test_a_budget_that_cannot_be_kept_is_said():
    def fit(tolerances):
        if tolerances["norm"] < 1e-3:
            raise UserError("no series")
        return {HEAD_NORM: fit_inverse_root(1.0, 2.0, 0.0, tolerances["norm"])}

    found = search_plan(5e-3, fit, lambda plan: plan[HEAD_NORM].max_error)
    assert found.error <= 5e-3
    with pytest.raises(UserError, match=r"more than the budget of 1e-06; allow a larger one"):
        search_plan(1e-6, fit, lambda plan: plan[HEAD_NORM].max_error)


def test_what_leaves_an_interval_is_counted(program):
    images = program.preprocess(list(random_pixels(CONFIG, 2)))
    place = "block 1 norm2"
    norm = program.plan[place]
    low, high = 0.5 * norm.low, 2.0 * norm.high
    wide = replace(norm, low=low, high=high)
    narrow = replace(norm, low=1e-3 * norm.low, high=1.1e-3 * norm.low)
    for own, expected in ((wide, 0), (narrow, 1)):
        changed = program.changed(plan={**program.plan, place: own})
        found, counts = changed.judge_and_count(images)
        judged = changed.judge(images)
        np.testing.assert_allclose(found.logits, judged.logits, rtol=F32, atol=F32)
        assert (found.within == judged.within).all()
        assert found.within.all() != bool(expected)
        outside, total = counts[place]
        assert total == 2  # of the last layer the class token alone
        assert outside == expected * total
        one = changed.judge_and_count(images, np.array([True, False]))[1][place]
        assert one == (expected, 1)
        left = tuple(label for label, (outside, _) in counts.items() if outside)
        assert leaving(changed, images) == left  # the same, counted by NumPy


def test_emulation_compiles_once_and_says_so(program, monkeypatch):
    said, traced = [], []
    compute = SecureProgram._compute
    monkeypatch.setattr(
        SecureProgram, "_compute", lambda *words: traced.append(1) or compute(*words)
    )
    images = random_pixels(CONFIG, 5)
    split = Split(images=images, labels=np.zeros(5, np.int32))
    own = program.changed()  # which has compiled nothing yet
    found = emulate(own, split, batch_size=2, progress=lambda *step: said.append(step))
    assert len(traced) == 1
    assert list(dict.fromkeys(said)) == [
        ("compiling", 0, 1),
        ("compiling", 1, 1),
        *(("evaluating", done, 5) for done in (2, 4, 5)),
    ]
    judged = program.judge(program.preprocess(list(images)))
    assert found.refused == (~judged.trusted).sum()
    assert found.close == (judged.close & judged.trusted).sum()
    assert found.left == (~(judged.within & judged.bounded)).sum()


def test_fixed_point_rounds_and_no_more(program):
    images = program.preprocess(list(random_pixels(CONFIG, 8)))
    errors = [
        relative_error(
            program.changed(engine=replace(program.engine, fraction_bits=bits)).in_fixed_point(
                images
            ),
            program(images),
        )
        for bits in (18, 22, 26)
    ]
    assert errors[0] > 4 * errors[1] > 4 * errors[2]
    # no smaller with 28 or 30 bits: wide intervals cost float32, the emulation's own, 12 bits
    assert errors[2] < 5e-4


def test_round_trip(program, tmp_path):
    program.save(tmp_path / "program")
    again = mpcvit.load(tmp_path / "program")
    assert isinstance(again, SecureProgram)
    assert again.digest() == program.digest()
    assert (again.public, again.calibration) == (program.public, program.calibration)
    images = program.preprocess(list(random_pixels(CONFIG, 2)))
    assert np.array_equal(again(images), program(images))


def test_damage_is_noticed(program, tmp_path):
    folder = tmp_path / "program"
    with pytest.raises(UserError, match="holds no program"):
        SecureProgram.load(tmp_path)
    program.save(folder)
    place = folder / "program.json"
    document = json.loads(place.read_text())
    public = document["public"]
    plan, norm = public["plan"], public["plan"][HEAD_NORM]
    for broken in (
        {**document, "format": "other"},
        {**document, "weights": "0"},
        {**document, "public": {**public, "plan": {}}},
        {**document, "public": {**public, "plan": {**plan, "block 0 norm1": 3}}},
        {**document, "public": {**public, "plan": {**plan, "block 9 norm1": norm}}},
        {**document, "public": {**public, "plan": {**plan, "block 0 denominator": norm}}},
        {**document, "public": {**public, "shapes": {"head.bias": [7]}}},
        {**document, "public": {**public, "engine": {}}},
    ):
        place.write_text(json.dumps(broken))
        with pytest.raises(UserError):
            SecureProgram.load(folder)


def test_local_truncation_is_safe_or_refused(program):
    images = program.preprocess(list(random_pixels(CONFIG, 2)))
    found = products_of(program, images)
    assert safe_bits(program.engine, **found) >= LEAST_SAFE_BITS
    with pytest.raises(UserError, match="would ruin one inference"):
        require_safe(replace(program.engine, fraction_bits=40), **found)
    small = replace(program.engine, ring_bits=64, fraction_bits=18)
    with pytest.raises(UserError, match="would ruin one inference"):
        require_safe(small, **found)


def test_engines_by_protocol():
    wide = choose_engine(load_profile("semi2k-wan")).apply(load_profile("semi2k-wan"))
    assert (wide.ring_bits, wide.truncation) == (128, Truncation.LOCAL)
    assert wide.network == load_profile("semi2k-wan").network
    cheetah = load_profile("cheetah")
    assert choose_engine(cheetah).apply(cheetah) == replace(cheetah, owned_weights=True)
    for other in (load_profile("semi2k"), load_profile("aby3")):
        assert choose_engine(cheetah).apply(other) == other
    with pytest.raises(UserError, match="SEMI2K with ring_bits = 128 alone"):
        Profile(protocol=PROTOCOLS["CHEETAH"], truncation=Truncation.LOCAL)


def test_fused_mlps_need_no_activation():
    architecture = Architecture.uniform(table.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED_RELU)
    config = small_config(depth=1)
    program = lower(
        small_checkpoint(config, architecture), list(random_pixels(config, 8)), "semi2k"
    )
    assert list(program.plan) == ["block 0 norm1", "block 0 norm2", HEAD_NORM]


def test_what_only_unread_tokens_need_has_no_norm():
    """Of a last layer the head reads the class token alone, whatever the others choose."""
    config, scaling = small_config(depth=1), table.SCALING
    others = config.tokens - 1
    layer = LayerArchitecture(
        heads=(
            (scaling, *(table.XNORM,) * others),
            (scaling, *(table.RELU_SOFTMAX,) * others),
            scaling,
        ),
        mlp=(MlpForm.FUSED_RELU, *(MlpForm.ACTIVATED,) * others),
    )
    checkpoint = small_checkpoint(config, Architecture(layers=(layer,)))
    pixels = list(random_pixels(config, 8))
    program, plain = lower(checkpoint, pixels, "semi2k"), Classifier(checkpoint)
    assert list(program.plan) == ["block 0 norm1", "block 0 norm2", HEAD_NORM]
    images = plain.preprocess(pixels)
    assert relative_error(program(images), plain(images)) <= ERROR_BUDGET


def test_loading_traces_no_network(program, tmp_path, monkeypatch):
    program.save(tmp_path / "program")

    def refuse(*arguments, **settings):
        raise AssertionError("a network is traced")

    monkeypatch.setattr(jax, "eval_shape", refuse)
    monkeypatch.setattr(jax, "make_jaxpr", refuse)
    loaded = SecureProgram.load(tmp_path / "program").changed(classes=program.classes)
    weights = dict(loaded.parameters)
    weights["head"] = {**weights["head"], "bias": np.zeros(3, np.float32)}
    with pytest.raises(UserError, match="the weights do not fit the program"):
        replace(loaded, parameters=weights)


def test_a_program_of_an_earlier_format_says_what_to_do(program, tmp_path):
    program.save(tmp_path / "program")
    place = tmp_path / "program" / "program.json"
    document = json.loads(place.read_text())
    place.write_text(json.dumps({**document, "format": "mpcvit-program/2"}))
    for read in (SecureProgram.load, read_engine):
        with pytest.raises(UserError, match=r"'mpcvit-program/2'.*lower the checkpoint again"):
            read(tmp_path / "program")

"""The artifact: what is saved is what is loaded, and nothing else is."""

import json
from dataclasses import replace

import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.profile import Profile, load_profile
from mpcvit.artifacts.protocols import PROTOCOLS, Truncation
from mpcvit.classifier import Classifier
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.lowering import ERROR_BUDGET, fold
from mpcvit.lowering.choose import choose_within
from mpcvit.lowering.engine import LEAST_SAFE_BITS, choose_engine, require_safe, safe_bits
from mpcvit.lowering.inverse_root import fit_inverse_root
from mpcvit.lowering.lower import products_of, relative_error
from mpcvit.lowering.plan import Plan
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.run import default_profile_for
from tests.models import random_pixels, small_checkpoint, small_config

CONFIG = small_config(mlp_ratio=1.2)
ARCHITECTURE = Architecture.uniform(table.RELU_SOFTMAX, depth=2, heads=3)


@pytest.fixture(scope="module")
def program():
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    return mpcvit.lower(checkpoint, list(random_pixels(CONFIG, 64)), "semi2k")


def test_emulation_is_near_the_network(program):
    plain = Classifier(small_checkpoint(CONFIG, ARCHITECTURE))
    images = plain.preprocess(list(random_pixels(CONFIG, 64)))
    assert relative_error(program(images), plain(images)) <= ERROR_BUDGET


def test_who_names_no_profile(program, tmp_path):
    """Gets no dealer unless it names one, or brings a program that only SEMI2K can run."""
    program.save(tmp_path / "program")
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    for model in (program, tmp_path / "program"):
        assert default_profile_for(model) == default_profile_for(model, "c:9100") == "semi2k-dealer"
    portable = replace(program, engine=choose_engine(load_profile("cheetah")))
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
    programs = [mpcvit.lower(checkpoint, pixels, error_budget=budget) for budget in (0.1, 1e-3)]
    for budget, own in zip((0.1, 1e-3), programs, strict=True):
        assert relative_error(own(images), plain(images)) <= budget
        assert own.calibration.error <= budget
    loose, tight = programs
    assert loose.plan.exchanges < tight.plan.exchanges
    with pytest.raises(UserError, match="must be positive"):
        mpcvit.lower(checkpoint, pixels, error_budget=0)


def test_a_budget_that_cannot_be_kept_is_said():
    plan = Plan(layers=(), norm=fit_inverse_root(1.0, 2.0, 0.0, 1e-2))

    def fit(tolerances):
        if tolerances.norm < 1e-3:
            raise UserError("no series")
        return replace(plan, norm=fit_inverse_root(1.0, 2.0, 0.0, tolerances.norm))

    found = choose_within(5e-3, fit, lambda plan: plan.norm.max_error)
    assert found.error <= 5e-3
    with pytest.raises(UserError, match=r"more than the budget of 1e-06; allow a larger one"):
        choose_within(1e-6, fit, lambda plan: plan.norm.max_error)


def test_what_leaves_an_interval_is_counted(program):
    images = program.preprocess(list(random_pixels(CONFIG, 2)))
    place, stand_in = "block 1 norm2", program.plan.layers[1].norm2
    low, high = 0.5 * stand_in.low, 2.0 * stand_in.high
    wide = replace(stand_in, low=low, high=high)
    narrow = replace(stand_in, low=1e-3 * stand_in.low, high=1.1e-3 * stand_in.low)
    for own, expected in ((wide, 0), (narrow, 1)):
        layers = (program.plan.layers[0], replace(program.plan.layers[1], norm2=own))
        changed = replace(program, plan=replace(program.plan, layers=layers))
        outside, total = changed.strays(images)[place]
        assert total == 2  # of the last layer the class token alone
        assert outside == expected * total


def test_fixed_point_rounds_and_no_more(program):
    images = program.preprocess(list(random_pixels(CONFIG, 8)))
    errors = [
        relative_error(
            replace(program, engine=replace(program.engine, fraction_bits=bits)).in_fixed_point(
                images
            ),
            program(images),
        )
        for bits in (10, 18, 26)
    ]
    assert errors[0] > 4 * errors[1] > 16 * errors[2]
    assert errors[2] < 1e-5


def test_round_trip(program, tmp_path):
    program.save(tmp_path / "program")
    again = mpcvit.load(tmp_path / "program")
    assert isinstance(again, SecureProgram)
    assert again.digest() == program.digest()
    assert (again.plan, again.engine, again.calibration) == (
        program.plan,
        program.engine,
        program.calibration,
    )
    images = program.preprocess(list(random_pixels(CONFIG, 2)))
    assert np.array_equal(again(images), program(images))


def test_damage_is_noticed(program, tmp_path):
    folder = tmp_path / "program"
    with pytest.raises(UserError, match="holds no program"):
        SecureProgram.load(tmp_path)
    program.save(folder)
    place = folder / "program.json"
    document = json.loads(place.read_text())
    for broken in (
        {**document, "format": "other"},
        {**document, "weights": "0"},
        {**document, "plan": {"layers": [], "norm": None}},
        {**document, "plan": {"layers": [{"norm1": 3}], "norm": None}},
        {**document, "engine": {}},
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
    program = mpcvit.lower(
        small_checkpoint(config, architecture), list(random_pixels(config, 8)), "semi2k"
    )
    (layer,) = program.plan.layers
    assert layer.activation is None
    assert layer.denominator is None


def test_what_only_unread_tokens_need_has_no_stand_in():
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
    program, plain = mpcvit.lower(checkpoint, pixels, "semi2k"), Classifier(checkpoint)
    (found,) = program.plan.layers
    for name in ("query_length", "product_length", "denominator", "activation"):
        assert getattr(found, name) is None
    images = plain.preprocess(pixels)
    assert relative_error(program(images), plain(images)) <= ERROR_BUDGET


def test_loading_traces_a_network_once(program, tmp_path, monkeypatch):
    program.save(tmp_path / "program")
    fold.weight_shapes.cache_clear()
    traced, initial = [], fold.init_parameters

    def counted(*arguments, **settings):
        traced.append(arguments)
        return initial(*arguments, **settings)

    monkeypatch.setattr(fold, "init_parameters", counted)
    loaded = SecureProgram.load(tmp_path / "program")
    replace(SecureProgram.load(tmp_path / "program"), classes=program.classes)
    assert len(traced) == 1
    weights = dict(loaded.parameters)
    weights["head"] = {**weights["head"], "bias": np.zeros(3, np.float32)}
    with pytest.raises(UserError, match="the weights do not fit the program"):
        replace(loaded, parameters=weights)

"""The artifact: what is saved is what is loaded, and nothing else is."""

import json
from dataclasses import replace

import numpy as np
import pytest

import mpcvit
from mpcvit.arch import Architecture, AttentionKind, MlpForm
from mpcvit.classifier import Classifier
from mpcvit.errors import UserError
from mpcvit.lowering.engine import LEAST_SAFE_BITS, choose_engine, require_safe, safe_bits
from mpcvit.lowering.lower import products_of
from mpcvit.lowering.program import SecureProgram
from mpcvit.profile import Profile, Protocol, Truncation, load_profile
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import assert_close

CONFIG = small_config(mlp_ratio=1.2)
ARCHITECTURE = Architecture.uniform(AttentionKind.RELU_SOFTMAX, depth=2, heads=3)


@pytest.fixture(scope="module")
def program():
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    return mpcvit.lower(checkpoint, list(random_pixels(CONFIG, 64)), "semi2k")


def test_emulation_is_near_the_network(program):
    plain = Classifier(small_checkpoint(CONFIG, ARCHITECTURE))
    images = plain.preprocess(list(random_pixels(CONFIG, 64)))
    assert_close(program(images), plain(images), 2e-2)


def test_round_trip(program, tmp_path):
    program.save(tmp_path / "program")
    again = mpcvit.load(tmp_path / "program")
    assert isinstance(again, SecureProgram)
    assert again.digest() == program.digest()
    assert (again.plan, again.engine) == (program.plan, program.engine)
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
    assert choose_engine(load_profile("cheetah")).apply(load_profile("cheetah")) == load_profile(
        "cheetah"
    )
    with pytest.raises(UserError, match="needs SEMI2K and ring_bits = 128"):
        Profile(protocol=Protocol.CHEETAH, truncation=Truncation.LOCAL)


def test_fused_mlps_need_no_activation():
    architecture = Architecture.uniform(
        AttentionKind.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED_RELU
    )
    config = small_config(depth=1)
    program = mpcvit.lower(
        small_checkpoint(config, architecture), list(random_pixels(config, 8)), "semi2k"
    )
    (layer,) = program.plan.layers
    assert layer.activation is None
    assert layer.denominator is None

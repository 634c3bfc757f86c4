"""No silent wrong answer: pictures that nobody trained on, through the programs that ship."""

import json

import numpy as np
import pytest

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.profile import load_profile
from mpcvit.classifier import Classifier
from mpcvit.codec import decode, encode
from mpcvit.demo.showcase import SHIPPED, model_in
from mpcvit.kinds import table
from mpcvit.lowering.lower import lower
from mpcvit.lowering.out_of_range import Trust
from mpcvit.lowering.program import PublicProgram, SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.secure.card import ModelCard
from mpcvit.secure.spu.stages import stage_network
from tests.marks import mostly_long
from tests.models import random_pixels, small_checkpoint, small_config
from tests.pictures import pictures, samples

BATCH = 8  # images that are compiled for: few are compiled quickly


@pytest.fixture(scope="module", params=mostly_long(["softmax", "mpcvit"], "mpcvit"))
def shipped(request):
    program = SecureProgram.load(model_in(SHIPPED, request.param, "lowered"))
    classifier = Classifier(Checkpoint.load(model_in(SHIPPED, request.param, "plain")))
    images = program.preprocess(pictures())
    return program, classifier, images


def test_the_networks_class_or_a_word_but_never_another_class(shipped):
    program, classifier, images = shipped
    found, expected = program.judge_all(images), classifier(images).argmax(axis=1)
    differs = found.logits.argmax(axis=1) != expected
    assert differs.any()  # so that an unguarded program would have been wrong without a word
    assert not (differs & found.trusted & ~found.close).any()


def test_fixed_point_says_the_same(shipped):
    program, classifier, images = shipped
    few = images[:40:2]
    found, expected = program.judge_all(few), classifier(few).argmax(axis=1)
    sure = found.trusted & ~found.close
    assert sure.any()
    places = np.flatnonzero(sure)
    for start in range(0, len(places), BATCH):
        chosen = np.resize(places[start : start + BATCH], BATCH)
        rounded = program.in_fixed_point(few[chosen])
        assert (rounded.argmax(axis=1) == expected[chosen]).all()


def test_ordinary_pictures_get_their_answers(shipped):
    program, classifier, _ = shipped
    images = program.preprocess(samples())
    found = program.judge_all(images)
    assert found.trusted.all()
    sure = ~found.close
    assert sure.sum() >= len(images) - 2
    expected = classifier(images).argmax(axis=1)
    assert (found.logits.argmax(axis=1)[sure] == expected[sure]).all()


def test_logits_beyond_their_bound_are_refused(shipped):
    program, _, _ = shipped
    bound = program.public.trust.bound
    assert bound > 0
    naive = program.changed(trust=Trust(bound=bound))
    far = program.preprocess(samples()[:1]) * 40  # no picture, but what an attacker may share
    found = naive.judge_all(far)
    assert not (found.trusted & (np.abs(found.logits).max(axis=1) > bound)).any()
    assert not program.judge_all(far).trusted.any()


def test_trust_survives_the_way_to_a_peer():
    config = small_config(depth=1)
    architecture = Architecture.uniform(table.SOFTMAX, depth=1, heads=3)
    checkpoint = small_checkpoint(config, architecture)
    program = lower(checkpoint, list(random_pixels(config, 32)), "semi2k", error_budget=1.0)
    trust = program.public.trust
    assert trust.guard
    assert trust.bound > 0
    assert trust.bound >= np.abs(program(program.preprocess(random_pixels(config, 8)))).max()
    document = json.loads(json.dumps(encode(program.public)))
    assert decode(PublicProgram, document, "program") == program.public
    stages = stage_network(ModelCard.of(program), load_profile("semi2k")).stages
    assert [stage.gives_slack for stage in stages] == [False, True, True, False]
    assert stages[-1].takes_slack


def test_an_assured_activation_cannot_leave_before_its_norm_does(shipped):
    """Whatever a norm gives, of length sqrt(width) at most, an activation's interval holds."""
    program, _, _ = shipped
    rng = np.random.default_rng(0)
    for place in program.public.trust.assured:
        index = int(place.split()[1])
        up = program.parameters[f"blocks_{index}"]["mlp"]["up"]
        activation = program.plan[place]
        # the worst there is: along each column of the kernel, both ways
        worst = up["kernel"] / np.linalg.norm(up["kernel"], axis=0)
        others = rng.standard_normal(worst.shape)
        for u in (worst, -worst, others / np.linalg.norm(others, axis=0)):
            given = np.sqrt(program.model.width) * u.T @ up["kernel"] + up["bias"]
            assert np.abs(given).max() <= activation.bound

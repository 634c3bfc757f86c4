"""What is revealed, in private runs: counts on the wire, every protocol, and nothing more."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.artifacts.record import Reveal
from mpcvit.classifier import Classifier
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.lowering.out_of_range import Trust
from mpcvit.secure.card import ModelCard, Opening
from mpcvit.secure.probe import measure_function
from mpcvit.secure.spu.best import choose_best
from mpcvit.secure.spu.compile import compile_network
from tests.models import random_pixels, small_checkpoint, small_config

WIDE = replace(load_profile("semi2k"), ring_bits=128, fraction_bits=26, truncation=Truncation.LOCAL)
LARGE = pytest.mark.long  # the same circuit as for 10 classes
ARCHITECTURE = Architecture.uniform(table.RELU_SOFTMAX, depth=1, heads=3)


def with_noise(opening, rows):
    """Arguments of a masked opening: noise that fixed point represents."""
    count = opening.count_noise(rows)
    rng = np.random.default_rng(0)
    return [rows, rng.uniform(1, 1000, (len(rows), count)).astype(np.float32)]


def choose(values, count, profile, **settings):
    return measure_function(lambda x: choose_best(x, count, **settings).chosen, [values], profile)


def random_values(classes):
    return (5 * np.random.default_rng(classes).standard_normal((1, classes))).astype(np.float32)


@pytest.mark.parametrize(
    ("classes", "exchanges", "sent_bytes"),
    [
        (10, 17, 5_765),
        pytest.param(100, 17, 530_150, marks=LARGE),
        pytest.param(200, 17, 2_110_300, marks=LARGE),
        (1000, 36, 1_082_608),
    ],
)
def test_counts_of_the_class_alone(classes, exchanges, sent_bytes):
    values = random_values(classes)
    found = choose(values, 1, WIDE)
    assert found.output.argmax() == values.argmax()
    assert found.output.sum() == 1
    assert (found.cost.exchanges, found.cost.sent_bytes) == (exchanges, sent_bytes)


@pytest.mark.parametrize(
    ("classes", "exchanges", "sent_bytes"),
    [
        (10, 9, 7_560),
        pytest.param(100, 9, 831_600, marks=LARGE),
        pytest.param(200, 9, 3_343_200, marks=LARGE),
        (1000, 22, 1_200_944),
    ],
)
def test_counts_of_the_class_behind_noise(classes, exchanges, sent_bytes):
    opening = Opening(reveal=Reveal.CLASS, classes=classes, trust=Trust(), masked=True)
    values = random_values(classes)
    found = measure_function(opening, with_noise(opening, values), WIDE)
    assert opening.read(found.output).chosen[0].index(True) == values.argmax()
    assert (found.cost.exchanges, found.cost.sent_bytes) == (exchanges, sent_bytes)


def test_the_best_five_take_the_exchanges_of_one():
    values = random_values(10)
    found = choose(values, 5, WIDE)
    assert set(np.flatnonzero(found.output)) == set(np.argsort(values[0])[5:])
    assert (found.cost.exchanges, found.cost.sent_bytes) == (17, 5_765)


def test_under_cheetah_pairs_take_far_fewer_messages_than_a_tournament():
    """SPU's argmax is a tournament: few bytes, and messages for every level of its tree."""
    values, profile = random_values(33), load_profile("cheetah")
    pairs = choose(values, 1, profile)
    tournament = measure_function(lambda x: jnp.argmax(x, axis=1), [values], profile)
    assert pairs.output.argmax() == tournament.output[0] == values.argmax()
    assert 5 * pairs.cost.exchanges < tournament.cost.exchanges
    assert pairs.cost.received_bytes < 100_000


def test_bounds_and_leads_ride_along():
    trust = Trust(bound=40.0, doubt=0.5)
    opening = Opening(reveal=Reveal.CLASS, classes=10, trust=trust, masked=True)
    found = measure_function(opening, with_noise(opening, random_values(10)), WIDE)
    assert found.cost.exchanges == 9
    answers = opening.read(found.output)
    assert all(answers.trusted)
    assert answers.values is None


@pytest.mark.parametrize("profile", ["semi2k", "cheetah", "aby3"])
def test_ties_and_refusals_under_every_protocol(profile):
    trust, masked = Trust(bound=40.0, doubt=0.5), load_profile(profile).protocol.shares_are_sums
    opening = Opening(reveal=Reveal.CLASS, classes=7, trust=trust, masked=masked)
    rows = np.array(
        [[1, 3, 3, 0, 2, 3, 1], [0, 0, 9, 0, 0, 0, 0], [0, 0, 50, 0, 0, 0, 0]], np.float32
    )
    given = with_noise(opening, rows) if masked else [rows]
    answers = opening.read(measure_function(opening, given, load_profile(profile)).output)
    assert np.argmax(answers.chosen, axis=1).tolist() == [1, 2, 2]
    assert answers.trusted == (True, True, False)
    assert answers.close[:2] == (True, False)


@pytest.mark.parametrize("profile", ["semi2k", "cheetah", "aby3"])
def test_logits_are_rounded_inside_the_protocol(profile):
    opening = Opening(reveal=Reveal.ROUNDED, classes=7, trust=Trust())
    rows = np.array([[-1.4, 3.3, 3.45, 0.25, -2.75, 3.1, 1.0]], np.float32)
    answers = opening.read(measure_function(opening, [rows], load_profile(profile)).output)
    assert answers.values == ((-1, 3, 3, 0, -3, 3, 1),)
    assert np.argmax(answers.chosen) == 2  # which the rounded logits alone would not tell


@pytest.fixture(scope="module")
def checkpoint():
    return small_checkpoint(small_config(depth=1), ARCHITECTURE)


def test_the_class_alone_is_what_arrives(checkpoint):
    pixels = random_pixels(checkpoint.model, 3)
    plain = Classifier(checkpoint)
    expected = plain(plain.preprocess(list(pixels)))
    result = mpcvit.run(checkpoint, pixels, "semi2k", batch_size=3, simulate=True)
    assert result.reveal is Reveal.CLASS
    assert result.record.reveal == "class"
    assert result.predictions == tuple(checkpoint.classes[i] for i in expected.argmax(axis=1))
    assert [answer.values for answer in result.answers] == [None] * 3
    with pytest.raises(UserError, match="no logits"):
        _ = result.logits
    last = result.record.batches[0].stages[-2]
    assert last.name == "reveal"


def test_five_classes_arrive_without_an_order(checkpoint):
    pixels = random_pixels(checkpoint.model, 1)
    plain = Classifier(checkpoint)
    expected = plain(plain.preprocess(list(pixels)))[0]
    result = mpcvit.run(checkpoint, pixels, "semi2k", reveal="top5", simulate=True)
    best = sorted(np.argsort(-expected)[:5])
    assert result.likeliest == (tuple(checkpoint.classes[index] for index in best),)


def test_what_is_revealed_is_part_of_the_program(checkpoint):
    digests = {
        compile_network(ModelCard.of(checkpoint, reveal), WIDE, 1).digest() for reveal in Reveal
    }
    assert len(digests) == len(Reveal)


def test_the_best_five_of_five_are_refused():
    with pytest.raises(UserError, match="say nothing"):
        Opening(reveal=Reveal.TOP5, classes=5, trust=Trust())


def test_naive_opening_gives_logits_away(checkpoint):
    """Who opens logits and shows a class has opened logits; who opens the circuit's has not."""
    logits = jnp.asarray(random_values(7))
    naive = Opening(reveal=Reveal.LOGITS, classes=7, trust=Trust())
    assert not naive.is_needed  # opened as they are
    opened = Opening(reveal=Reveal.CLASS, classes=7, trust=Trust())(logits)
    other = Opening(reveal=Reveal.CLASS, classes=7, trust=Trust())(3 * logits - 1)
    assert opened.tolist() == other.tolist()  # no scale, no offset, no lead is left in it

import numpy as np
import pytest

from mpcvit.data import Mix, draw_mix, mix, partners, soft_targets

FLOAT32_ROUNDING = 1e-6  # a few roundings of values below 4
TRIALS = 2000
SIX_SIGMA = 6.0
BOTH = {"height": 31, "width": 37, "mixup": 0.8, "cutmix": 1.0}


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((6, 5, 7, 3)).astype(np.float32)


def draws(**changes):
    return [draw_mix(np.random.default_rng(seed), **{**BOTH, **changes}) for seed in range(TRIALS)]


def test_mix_by_definition(images):
    choices = [Mix(lam=0.3), Mix(lam=0.9, box=(1, 4, 2, 7)), Mix()]
    mixed = mix(images, choices)
    for position in range(6):
        choice, partner = choices[position // 2], images[position ^ 1].astype(np.float64)
        expected = images[position].astype(np.float64)
        if choice.box is None:
            expected = choice.lam * expected + (1 - choice.lam) * partner
        else:
            top, bottom, left, right = choice.box
            for row in range(top, bottom):
                for column in range(left, right):
                    expected[row, column] = partner[row, column]
        np.testing.assert_allclose(mixed[position], expected, rtol=0, atol=FLOAT32_ROUNDING)
    assert mixed.dtype == np.float32


def test_mix_leaves_its_input_alone(images):
    before = images.copy()
    mix(images, [Mix(lam=0.3), Mix(box=(0, 2, 0, 2)), Mix()])
    np.testing.assert_array_equal(images, before)


def test_even_slices_are_closed_under_mixing(images):
    choices = [Mix(lam=0.3), Mix(lam=0.9, box=(1, 4, 2, 7)), Mix(lam=0.6)]
    whole = mix(images, choices)
    np.testing.assert_array_equal(whole[2:6], mix(images[2:6], choices[1:]))


def test_odd_batches_are_refused(images):
    with pytest.raises(ValueError, match="5 images cannot be mixed as 2 pairs"):
        mix(images[:5], [Mix(), Mix()])


def test_partners_are_neighbours():
    labels = np.arange(10, 18)
    assert partners(labels).tolist() == [labels[position ^ 1] for position in range(8)]


def test_targets_by_definition():
    labels, lam = np.array([0, 3, 2, 2]), np.array([0.25, 0.25, 1.0, 0.4])
    others = partners(labels)
    onehot = np.eye(5)
    expected = lam[:, None] * onehot[labels] + (1 - lam[:, None]) * onehot[others]
    expected = 0.9 * expected + 0.1 / 5
    found = soft_targets(labels, others, lam, 5, 0.1)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_ROUNDING)
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=FLOAT32_ROUNDING)


def test_what_has_no_class_is_spread_evenly():
    labels, lam = np.array([-1, 2, -1, -1]), np.array([0.75, 0.75, 0.5, 0.5])
    found = soft_targets(labels, partners(labels), lam, 5, 0.1)
    even, of_two = np.full(5, 1 / 5), np.eye(5)[2]
    expected = [0.75 * even + 0.25 * of_two, 0.75 * of_two + 0.25 * even, even, even]
    smoothed = 0.9 * np.array(expected) + 0.1 / 5
    np.testing.assert_allclose(found, smoothed, rtol=0, atol=FLOAT32_ROUNDING)


def test_lambda_is_what_the_box_leaves():
    for choice in draws(mixup=0.0):
        assert choice.box is not None
        top, bottom, left, right = choice.box
        assert 0 <= top <= bottom <= 31
        assert 0 <= left <= right <= 37
        kept = np.ones((31, 37))
        kept[top:bottom, left:right] = 0
        assert choice.lam == pytest.approx(kept.mean(), abs=1e-12)


def test_boxes_have_the_area_that_was_drawn():
    # so narrow a distribution that lam is one half: sides are sqrt(1/2) of 31 and 37, made even
    top, bottom, left, right = np.array([choice.box for choice in draws(mixup=0.0, cutmix=1e9)]).T
    assert (bottom - top).max() == 2 * (int(31 * np.sqrt(0.5)) // 2) == 20
    assert (right - left).max() == 2 * (int(37 * np.sqrt(0.5)) // 2) == 26


def test_boxes_are_clipped_at_every_edge():
    top, bottom, left, right = np.array([choice.box for choice in draws(mixup=0.0)]).T
    assert (top.min(), bottom.max(), left.min(), right.max()) == (0, 31, 0, 37)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_follows_the_beta_distribution(alpha):
    lam = np.array([choice.lam for choice in draws(mixup=alpha, cutmix=0.0)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(lam.mean() - 0.5) < SIX_SIGMA * np.sqrt(variance / TRIALS)
    assert abs(lam.var() - variance) < 0.1 * variance + 0.005


@pytest.mark.parametrize("switch", [0.0, 0.3, 1.0])
def test_switch_is_the_share_of_cutmix(switch):
    share = np.mean([choice.box is not None for choice in draws(switch=switch)])
    assert abs(share - switch) <= SIX_SIGMA * np.sqrt(switch * (1 - switch) / TRIALS)


@pytest.mark.parametrize("probability", [0.0, 0.4])
def test_probability_is_the_share_of_mixed_pairs(probability):
    share = np.mean([choice != Mix() for choice in draws(probability=probability)])
    assert abs(share - probability) <= SIX_SIGMA * np.sqrt(probability * (1 - probability) / TRIALS)


def test_nothing_is_mixed_when_both_are_off():
    assert set(draws(mixup=0.0, cutmix=0.0)) == {Mix()}

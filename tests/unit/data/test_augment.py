import numpy as np
import pytest
from PIL import Image

from mpcvit.data import flip, normalisation, normalise, random_erasing, random_resized_crop
from mpcvit.errors import UserError

TRIALS = 300
FLOAT32_ROUNDING = 1e-6  # two roundings of values below 4
SIX_SIGMA = 6.0


def generators(count: int = TRIALS):
    return (np.random.default_rng(seed) for seed in range(count))


def test_crop_is_some_box_of_the_wanted_size(random_pixels):
    pixels = random_pixels(0, 23, 23)
    # a quarter of 23 * 23 as a square: 11.5 rounds to 12
    candidates = {
        np.asarray(
            Image.fromarray(pixels).resize((23, 23), kind, (left, top, left + 12, top + 12))
        ).tobytes()
        for kind in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
        for left in range(12)
        for top in range(12)
    }
    crops = {
        random_resized_crop(pixels, rng, scale=(0.25, 0.25), ratio=(1, 1)).tobytes()
        for rng in generators(1500)
    }
    assert crops <= candidates
    assert len(crops) > 0.95 * len(candidates)  # 1,500 draws of 288 miss 1.6 on average


def test_crop_keeps_shape_and_constants():
    constant = np.full((13, 17, 1), 99, np.uint8)
    for rng in generators():
        crop = random_resized_crop(constant, rng, scale=(0.1, 1), ratio=(0.5, 2))
        assert crop.dtype == np.uint8
        np.testing.assert_array_equal(crop, constant)


def test_whole_image_is_left_alone(random_pixels):
    pixels = random_pixels(1, 13, 13)
    for rng in generators(20):
        assert random_resized_crop(pixels, rng, scale=(1, 1), ratio=(1, 1)) is pixels


def test_box_that_never_fits_becomes_the_central_one(random_pixels):
    pixels = random_pixels(2, 8, 16)
    crop = random_resized_crop(pixels, np.random.default_rng(0), scale=(1, 1), ratio=(1, 1))
    middle = [
        np.asarray(Image.fromarray(pixels).resize((16, 8), kind, (4, 0, 12, 8)))
        for kind in (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)
    ]
    assert any(np.array_equal(crop, each) for each in middle)


def test_flip_mirrors_columns(random_pixels):
    pixels = random_pixels(3, 5, 7)
    mirrored = flip(pixels, np.random.default_rng(0), probability=1)
    for column in range(7):
        np.testing.assert_array_equal(mirrored[:, column], pixels[:, 6 - column])
    assert flip(pixels, np.random.default_rng(0), probability=0) is pixels


def test_flip_happens_as_often_as_asked(random_pixels):
    pixels = random_pixels(3, 5, 7)
    share = np.mean([flip(pixels, rng, probability=0.3) is not pixels for rng in generators()])
    assert abs(share - 0.3) < SIX_SIGMA * np.sqrt(0.3 * 0.7 / TRIALS)


def test_normalise_by_definition():
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 3), dtype=np.uint8)
    mean, std = (0.1, 0.5, 0.9), (0.3, 0.5, 0.7)
    expected = (images.astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    found = normalise(images, *normalisation(mean, std, 3))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=FLOAT32_ROUNDING)


@pytest.mark.parametrize(("mean", "std"), [((0.5,), (0.5,)), ((0.5,) * 3, (0.5,))])
def test_constants_of_other_length_are_refused(mean, std):
    with pytest.raises(UserError, match="but the images have 3 channels"):
        normalisation(mean, std, 3)


def boxes(height: int, width: int):
    """Erase images of a value that noise never takes; give each with its erased pixels."""
    image = np.full((height, width, 3), 1e9, np.float32)
    for rng in generators():
        erased = random_erasing(image, rng, probability=1)
        assert (image == 1e9).all()
        yield erased, (erased != 1e9).all(-1)


def test_erased_boxes_have_the_promised_area():
    height, width = 31, 37
    areas = []
    for erased, inside in boxes(height, width):
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        box_height, box_width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert inside.sum() == box_height * box_width  # one solid box
        assert ((erased != 1e9) == inside[..., None]).all()  # in all channels
        # each side is rounded by half a pixel at most
        assert (box_height + 0.5) * (box_width + 0.5) >= 0.02 * height * width
        assert (box_height - 0.5) * (box_width - 0.5) <= height * width / 3
        assert (box_height + 0.5) / (box_width - 0.5) >= 0.3
        assert (box_width + 0.5) / (box_height - 0.5) >= 0.3
        areas.append(inside.sum() / (height * width))
    assert min(areas) < 0.05
    assert max(areas) > 0.28


def test_erased_boxes_are_as_often_wide_as_tall():
    ratios = []
    for _, inside in boxes(61, 61):
        ratios.append(np.log(inside.any(1).sum() / inside.any(0).sum()))
    # log-uniform on +-log(1 / 0.3); boxes that do not fit are rare and symmetric
    spread = np.log(1 / 0.3) / np.sqrt(3)
    assert abs(np.mean(ratios)) < SIX_SIGMA * spread / np.sqrt(TRIALS)
    assert abs(np.std(ratios) / spread - 1) < 0.15
    assert max(np.abs(ratios)) > 0.85 * np.log(1 / 0.3)


def test_noise_is_standard_normal():
    noise = np.concatenate([erased[inside].ravel() for erased, inside in boxes(31, 37)])
    assert abs(noise.mean()) < SIX_SIGMA / np.sqrt(noise.size)
    assert abs(noise.std() - 1) < SIX_SIGMA / np.sqrt(2 * noise.size)


def test_erasing_happens_as_often_as_asked():
    image = np.zeros((11, 13, 1), np.float32)
    share = np.mean(
        [random_erasing(image, rng, probability=0.25) is not image for rng in generators()]
    )
    assert abs(share - 0.25) < SIX_SIGMA * np.sqrt(0.25 * 0.75 / TRIALS)

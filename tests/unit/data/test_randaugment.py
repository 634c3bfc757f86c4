import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from mpcvit.data import rand_augment
from mpcvit.data.randaugment import (
    OPERATIONS,
    Draw,
    auto_contrast,
    brightness,
    colour,
    contrast,
    equalise,
    invert,
    posterise,
    rotate,
    sharpness,
    shear_x,
    shear_y,
    solarise,
    solarise_add,
    translate_x,
    translate_y,
)

FILL = (11, 22, 33)
BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR
SETTINGS = {"magnitude": 9.0, "std": 0.5, "fill": FILL}


def draw(level: float = 0.9, sign: int = 1, interpolation: Image.Resampling = BICUBIC) -> Draw:
    return Draw(level, sign, interpolation, FILL)


@pytest.fixture(params=["random", "dark", "constant", "two_levels", "grey"])
def pixels(request, random_pixels) -> np.ndarray:
    """Images of 29 x 31, among them those on which histograms degenerate."""
    image = random_pixels(0, 29, 31, channels=1 if request.param == "grey" else 3)
    return {
        "random": image,
        "dark": image // 5 + 7,
        "constant": np.full_like(image, 77),
        "two_levels": np.where(image < 100, np.uint8(40), np.uint8(41)),
        "grey": image,
    }[request.param]


def pillow(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def check(found: np.ndarray, expected: Image.Image) -> None:
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, np.asarray(expected).reshape(found.shape))


def test_auto_contrast_is_pillows(pixels):
    check(auto_contrast(pixels, draw()), ImageOps.autocontrast(pillow(pixels)))


def test_equalise_is_pillows(pixels):
    check(equalise(pixels, draw()), ImageOps.equalize(pillow(pixels)))


def test_invert_is_pillows(pixels):
    check(invert(pixels, draw()), ImageOps.invert(pillow(pixels)))


@pytest.mark.parametrize(("level", "bits"), [(0.0, 4), (0.25, 3), (0.6, 2), (0.9, 1)])
def test_posterise_is_pillows(level, bits, pixels):
    check(posterise(pixels, draw(level)), ImageOps.posterize(pillow(pixels), bits))


def test_posterise_ends_in_black(random_pixels):
    assert (posterise(random_pixels(1), draw(1.0)) == 0).all()


@pytest.mark.parametrize(("level", "threshold"), [(0.0, 256), (0.5, 128), (0.9, 26), (1.0, 0)])
def test_solarise_is_pillows(level, threshold, pixels):
    check(solarise(pixels, draw(level)), ImageOps.solarize(pillow(pixels), threshold))


@pytest.mark.parametrize(("level", "added"), [(0.0, 0), (0.9, 99), (1.0, 110)])
def test_solarise_add_by_definition(level, added, pixels):
    wide = pixels.astype(int)
    expected = np.where(wide < 128, wide + added, wide)
    np.testing.assert_array_equal(solarise_add(pixels, draw(level)), expected)


@pytest.mark.parametrize(
    ("level", "sign", "factor"), [(0.9, 1, 1.81), (0.9, -1, 0.19), (1, -1, 0.1)]
)
@pytest.mark.parametrize(
    ("operation", "enhancer"),
    [
        (colour, ImageEnhance.Color),
        (contrast, ImageEnhance.Contrast),
        (brightness, ImageEnhance.Brightness),
        (sharpness, ImageEnhance.Sharpness),
    ],
)
def test_enhancements_are_pillows(operation, enhancer, level, sign, factor, pixels):
    check(operation(pixels, draw(level, sign)), enhancer(pillow(pixels)).enhance(factor))


@pytest.mark.parametrize("interpolation", [BICUBIC, BILINEAR])
@pytest.mark.parametrize("sign", [1, -1])
def test_rotate_is_pillows(interpolation, sign, random_pixels):
    pixels = random_pixels(2, 29, 31)
    # Pillow counts angles the other way round
    expected = pillow(pixels).rotate(-sign * 27.0, interpolation, fillcolor=FILL)
    found = rotate(pixels, draw(0.9, sign, interpolation)).astype(int)
    # Pillow rounds its matrix to 15 digits, which can move a level across a rounding edge
    assert np.abs(found - np.asarray(expected)).max() <= 1


def test_translate_by_whole_pixels(random_pixels):
    pixels = random_pixels(3, 20, 40)
    level = 0.5 / 0.45 / 2  # a quarter: 10 columns, 5 rows
    fill_columns = np.broadcast_to(FILL, (20, 10, 3))
    np.testing.assert_array_equal(
        translate_x(pixels, draw(level)), np.concatenate([pixels[:, 10:], fill_columns], 1)
    )
    np.testing.assert_array_equal(
        translate_x(pixels, draw(level, -1)), np.concatenate([fill_columns, pixels[:, :-10]], 1)
    )
    fill_rows = np.broadcast_to(FILL, (5, 40, 3))
    np.testing.assert_array_equal(
        translate_y(pixels, draw(level)), np.concatenate([pixels[5:], fill_rows], 0)
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_shear_moves_rows_or_columns_in_proportion(sign, random_pixels):
    pixels = random_pixels(4, 29, 31)
    sheared = shear_x(pixels, draw(1.0, sign, BILINEAR))
    transposed = shear_y(pixels.transpose(1, 0, 2), draw(1.0, sign, BILINEAR))
    np.testing.assert_array_equal(transposed.transpose(1, 0, 2), sheared)
    # row 3's centre lies at 3.5: it moves by 0.3 * 3.5 = 1.05 pixels against the sign
    row, shift = pixels[3].astype(float), 1.05
    for column in range(5, 25):
        low = int(np.floor(column + sign * shift))
        part = column + sign * shift - low
        expected = row[low] * (1 - part) + row[low + 1] * part
        assert np.abs(sheared[3, column] - expected).max() <= 1  # truncation


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_leave_their_input_alone(operation, random_pixels):
    pixels = random_pixels(5, 29, 31)
    before = pixels.copy()
    changed = operation(pixels, draw())
    np.testing.assert_array_equal(pixels, before)
    assert changed.shape == pixels.shape
    assert not np.array_equal(changed, pixels) or operation is auto_contrast  # already stretched


def test_there_are_fifteen_operations():
    assert len(set(OPERATIONS)) == 15


def test_no_operations_change_nothing(random_pixels):
    pixels = random_pixels(6)
    assert rand_augment(pixels, np.random.default_rng(0), ops=0, **SETTINGS) is pixels


@pytest.mark.parametrize("channels", [1, 3])
def test_two_operations_leave_a_quarter_untouched(channels, random_pixels):
    pixels = random_pixels(7, 11, 13, channels)
    trials = 800
    results = [
        rand_augment(pixels, np.random.default_rng(seed), ops=2, **SETTINGS)
        for seed in range(trials)
    ]
    assert {(each.shape, each.dtype) for each in results} == {(pixels.shape, pixels.dtype)}
    # `is` and not equality: some operations change nothing; colour on grey gives its input back
    idle = 0.5 if channels == 3 else 0.5 + 0.5 / 15
    share = np.mean([each is pixels for each in results])
    assert abs(share - idle**2) < 6 * np.sqrt(idle**2 * (1 - idle**2) / trials)


def test_magnitude_is_drawn_around_its_mean(monkeypatch, random_pixels):
    levels: list[float] = []

    def record(image: np.ndarray, drawn: Draw) -> np.ndarray:
        levels.append(drawn.level)
        return image

    monkeypatch.setattr("mpcvit.data.randaugment.OPERATIONS", (record,))
    for seed in range(1500):
        rand_augment(random_pixels(8), np.random.default_rng(seed), ops=2, **SETTINGS)
    drawn = np.array(levels)
    assert abs(np.median(drawn) - 0.9) < 0.01  # six deviations of the median of 1,500
    assert abs(drawn[drawn < 1].std() - 0.05) < 0.006
    assert drawn.max() == 1.0  # clipped: two deviations up are reached often

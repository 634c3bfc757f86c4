import numpy as np
import pytest
from PIL import Image, ImageStat

from mpcvit.data import rand_augment
from mpcvit.data.augment import OPERATIONS, Draw, from_pillow, to_pillow

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


def apply(operation: str, image: np.ndarray, *drawn) -> np.ndarray:
    return from_pillow(OPERATIONS[operation](to_pillow(image), draw(*drawn)))


def channels_of(image: np.ndarray) -> list[np.ndarray]:
    return [image[..., channel] for channel in range(image.shape[-1])]


def test_auto_contrast_stretches_each_channel(pixels):
    found = apply("auto_contrast", pixels)
    for before, after in zip(channels_of(pixels), channels_of(found), strict=True):
        low, high = int(before.min()), int(before.max())
        if low == high:
            np.testing.assert_array_equal(after, before)
        else:
            assert (after.min(), after.max()) == (0, 255)
            expected = (before.astype(float) - low) * 255 / (high - low)
            assert np.abs(after - expected).max() <= 1  # truncation


def test_equalise_maps_levels_by_how_many_lie_below(pixels):
    found = apply("equalise", pixels)
    for before, after in zip(channels_of(pixels), channels_of(found), strict=True):
        below = (before.ravel()[:, None] > before.ravel()).sum(1).reshape(before.shape)
        step = (before.size - (before == before.max()).sum()) // 255
        if step == 0:  # too few levels
            np.testing.assert_array_equal(after, before)
        else:
            np.testing.assert_array_equal(after, np.minimum((step // 2 + below) // step, 255))


def test_invert(pixels):
    np.testing.assert_array_equal(apply("invert", pixels), 255 - pixels)


@pytest.mark.parametrize(("level", "bits"), [(0.0, 4), (0.25, 3), (0.6, 2), (0.9, 1), (1.0, 0)])
def test_posterise_keeps_the_upper_bits(level, bits, pixels):
    found = apply("posterise", pixels, level)
    np.testing.assert_array_equal(found, pixels // 2 ** (8 - bits) * 2 ** (8 - bits) if bits else 0)


@pytest.mark.parametrize(("level", "threshold"), [(0.0, 256), (0.5, 128), (0.9, 26), (1.0, 0)])
def test_solarise_inverts_from_its_threshold_on(level, threshold, pixels):
    expected = np.where(pixels < threshold, pixels, 255 - pixels)
    np.testing.assert_array_equal(apply("solarise", pixels, level), expected)


@pytest.mark.parametrize(("level", "added"), [(0.0, 0), (0.9, 99), (1.0, 110)])
def test_solarise_add_by_definition(level, added, pixels):
    wide = pixels.astype(int)
    expected = np.where(wide < 128, wide + added, wide)
    np.testing.assert_array_equal(apply("solarise_add", pixels, level), expected)


def blurred(image: Image.Image) -> np.ndarray:
    """Blur by Pillow's smoothing kernel inside; the border stays."""
    wide = from_pillow(image).astype(float)
    smooth = wide.copy()
    kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    height, width = wide.shape[:2]
    smooth[1:-1, 1:-1] = sum(
        kernel[row, column] * wide[row : height - 2 + row, column : width - 2 + column]
        for row in range(3)
        for column in range(3)
    )
    return smooth


@pytest.mark.parametrize(
    ("level", "sign", "factor"), [(0.9, 1, 1.81), (0.9, -1, 0.19), (1, -1, 0.1)]
)
@pytest.mark.parametrize(
    ("operation", "origin"),
    [
        ("colour", lambda image: np.asarray(image.convert("L"), float)[..., None]),
        ("contrast", lambda image: int(ImageStat.Stat(image.convert("L")).mean[0] + 0.5)),
        ("brightness", lambda image: 0.0),
        ("sharpness", blurred),
    ],
)
def test_enhancements_move_away_from_their_origin(operation, origin, level, sign, factor, pixels):
    start = origin(to_pillow(pixels))
    expected = np.clip(start + factor * (pixels.astype(float) - start), 0, 255)
    # a blur is rounded before it is moved from, by half a level or, times |1 - factor|, less
    assert np.abs(apply(operation, pixels, level, sign) - expected).max() <= 1.5


@pytest.mark.parametrize("interpolation", [BICUBIC, BILINEAR])
@pytest.mark.parametrize("sign", [1, -1])
def test_rotate_is_pillows(interpolation, sign, random_pixels):
    pixels = random_pixels(2, 29, 31)
    # Pillow counts angles the other way round
    expected = to_pillow(pixels).rotate(-sign * 27.0, interpolation, fillcolor=FILL)
    found = apply("rotate", pixels, 0.9, sign, interpolation).astype(int)
    # Pillow rounds its matrix to 15 digits, which can move a level across a rounding edge
    assert np.abs(found - np.asarray(expected)).max() <= 1


def test_translate_by_whole_pixels(random_pixels):
    pixels = random_pixels(3, 20, 40)
    level = 0.5 / 0.45 / 2  # a quarter: 10 columns, 5 rows
    fill_columns = np.broadcast_to(FILL, (20, 10, 3))
    np.testing.assert_array_equal(
        apply("translate_x", pixels, level), np.concatenate([pixels[:, 10:], fill_columns], 1)
    )
    np.testing.assert_array_equal(
        apply("translate_x", pixels, level, -1), np.concatenate([fill_columns, pixels[:, :-10]], 1)
    )
    fill_rows = np.broadcast_to(FILL, (5, 40, 3))
    np.testing.assert_array_equal(
        apply("translate_y", pixels, level), np.concatenate([pixels[5:], fill_rows], 0)
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_shear_moves_rows_or_columns_in_proportion(sign, random_pixels):
    pixels = random_pixels(4, 29, 31)
    sheared = apply("shear_x", pixels, 1.0, sign, BILINEAR)
    transposed = apply("shear_y", pixels.transpose(1, 0, 2), 1.0, sign, BILINEAR)
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
    picture = to_pillow(pixels)
    changed = from_pillow(OPERATIONS[operation](picture, draw()))
    np.testing.assert_array_equal(from_pillow(picture), pixels)
    assert changed.shape == pixels.shape
    assert not np.array_equal(changed, pixels) or operation == "auto_contrast"  # stretched before


def test_there_are_fifteen_operations():
    assert len(set(OPERATIONS.values())) == 15


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
    # `is` and not equality: some operations change nothing
    share = np.mean([each is pixels for each in results])
    assert abs(share - 1 / 4) < 6 * np.sqrt(1 / 4 * 3 / 4 / trials)


def test_magnitude_is_drawn_around_its_mean(monkeypatch, random_pixels):
    levels: list[float] = []

    def record(image: Image.Image, drawn: Draw) -> Image.Image:
        levels.append(drawn.level)
        return image

    monkeypatch.setattr("mpcvit.data.augment.OPERATIONS", {"record": record})
    for seed in range(1500):
        rand_augment(random_pixels(8), np.random.default_rng(seed), ops=2, **SETTINGS)
    drawn = np.array(levels)
    assert abs(np.median(drawn) - 0.9) < 0.01  # six deviations of the median of 1,500
    assert abs(drawn[drawn < 1].std() - 0.05) < 0.006
    assert drawn.max() == 1.0  # clipped: two deviations up are reached often

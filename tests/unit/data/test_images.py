import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from mpcvit.artifacts.config import DataConfig
from mpcvit.artifacts.image_fit import FitRule, ImageFit, Resample
from mpcvit.data import decode_image, fit_image, images
from mpcvit.data.images import FORMATS
from mpcvit.errors import UserError

LOSSLESS = ("PNG", "BMP", "TIFF")
JPEG_ERROR = 3  # grey levels that quality 100 moves a smooth picture by, at most


def decode(data, channels=3):
    return decode_image(data, channels=channels, where="the picture")


def sixteen_bit_png(width: int, height: int, colour_type: int, value: int) -> bytes:
    """Pillow reads such files but cannot write them."""
    samples = {0: 1, 2: 3}[colour_type]

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + struct.pack(">H", value) * (samples * width) for _ in range(height))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_pictures_round_trip(kind, channels, random_pixels, encode):
    pixels = random_pixels(0, height=5, width=11, channels=channels)
    decoded = decode(encode(pixels, kind), channels)
    assert decoded.dtype == np.uint8
    np.testing.assert_array_equal(decoded, pixels)


def test_jpeg_is_close(encode):
    ramp = np.linspace(0, 255, 11 * 13).reshape(11, 13).astype(np.uint8)
    pixels = np.stack([ramp, ramp, ramp], -1)
    error = decode(encode(pixels, "JPEG", quality=100)).astype(int) - pixels
    assert np.abs(error).max() <= JPEG_ERROR


def test_path_reads_like_bytes(tmp_path, random_pixels, encode):
    pixels = random_pixels(1, height=5, width=11)
    path = tmp_path / "a.png"
    path.write_bytes(encode(pixels))
    np.testing.assert_array_equal(decode(path), pixels)


def test_grey_is_repeated_for_rgb(random_pixels, encode):
    pixels = random_pixels(2, height=5, width=11, channels=1)
    decoded = decode(encode(pixels), channels=3)
    np.testing.assert_array_equal(decoded, np.concatenate([pixels] * 3, -1))


def test_palette_is_read_as_rgb(encode):
    palette = Image.new("P", (3, 2), 1)
    palette.putpalette([0, 0, 0, 10, 200, 30])
    assert (decode(encode(palette)) == (10, 200, 30)).all()


def test_bilevel_is_read_as_grey(encode):
    assert (decode(encode(Image.new("1", (3, 2), 1)), channels=1) == 255).all()


def test_orientation_is_applied(random_pixels, encode):
    pixels = random_pixels(3, height=5, width=11)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held with its right side up
    np.testing.assert_array_equal(decode(encode(pixels, exif=exif)), np.rot90(pixels, -1))


def test_second_picture_of_a_camera_file_is_ignored(random_pixels, encode):
    first, preview = (Image.fromarray(random_pixels(seed)) for seed in (4, 5))
    data = encode(first, "MPO", save_all=True, append_images=[preview])
    assert decode(data).shape == (7, 7, 3)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_dropped_only_where_it_hides_nothing(mode, encode):
    picture = Image.new("RGBA", (3, 2), (90, 90, 90, 255)).convert(mode)
    assert (decode(encode(picture, "PNG")) == 90).all()
    picture.putalpha(Image.new("L", (3, 2), 254))
    with pytest.raises(UserError, match="the picture is transparent in places"):
        decode(encode(picture, "PNG"))


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_colour_that_stands_for_transparency_may_not_occur(mode, encode):
    picture = Image.new("P", (3, 2), 1)
    picture.putpalette([0, 0, 0, 90, 90, 90])
    picture = picture.convert(mode)
    key = {"P": (0, 1), "L": (7, 90), "RGB": ((7, 7, 7), (90, 90, 90))}[mode]
    assert (decode(encode(picture, transparency=key[0])) == 90).all()
    with pytest.raises(UserError, match="transparent"):
        decode(encode(picture, transparency=key[1]))


@pytest.mark.parametrize("colour_type", [0, 2])
def test_of_sixteen_bits_the_upper_ones_are_kept(colour_type):
    assert (decode(sixteen_bit_png(5, 3, colour_type, 0x12F0)) == 0x12).all()


def test_a_wide_tiff_is_read_if_its_range_is_known(encode):
    values = np.array([[0, 0x80FF, 0xFFFF]], np.uint16)
    decoded = decode(encode(Image.fromarray(values), "TIFF"), channels=1)
    assert decoded[0, :, 0].tolist() == [0, 0x80, 0xFF]
    for mode in ("I", "F"):
        with pytest.raises(UserError, match=f"numbers of unknown range .{mode}.; convert"):
            decode(encode(Image.new(mode, (3, 2)), "TIFF"))


@pytest.mark.parametrize(("mode", "kind"), [("CMYK", "JPEG"), ("CMYK", "TIFF"), ("LAB", "TIFF")])
def test_other_colours_become_rgb(mode, kind, encode):
    colour = Image.new("RGB", (8, 8), (200, 40, 90))
    picture = Image.new(mode, (8, 8), (180, 170, 20)) if mode == "LAB" else colour.convert(mode)
    error = decode(encode(picture, kind)).astype(int) - np.asarray(picture.convert("RGB"))
    assert np.abs(error).max() <= JPEG_ERROR


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_the_first_frame_of_an_animation_is_read(kind, encode):
    frames = [Image.new("RGB", (4, 4), (level,) * 3) for level in (30, 200)]
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(decode(data).astype(int) - 30).max() <= JPEG_ERROR


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_of_the_list_is_read(kind, encode):
    options = {"quality": 100} if kind == "AVIF" else {}
    picture = Image.new("RGB", (8, 8), (90, 90, 90))
    error = decode(encode(picture, kind, **options)).astype(int) - 90
    assert np.abs(error).max() <= JPEG_ERROR


def test_colour_is_refused_for_a_grey_model(random_pixels, encode):
    with pytest.raises(UserError, match="the picture has 3 channels, but the model takes 1"):
        decode(encode(random_pixels(8)), channels=1)


def test_colour_that_shows_only_greys_is_grey(random_pixels, encode):
    grey = random_pixels(5, 7)[..., :1]
    found = decode_image(encode(np.repeat(grey, 3, axis=-1)), channels=1, where="photo.png")
    assert np.array_equal(found, grey)


def test_grey_is_refused_for_two_channels(random_pixels, encode):
    with pytest.raises(UserError, match="has 1 channel, but the model takes 2"):
        decode(encode(random_pixels(8, channels=1)), channels=2)


@pytest.mark.parametrize("over", [1.5, 3])  # Pillow warns up to twice its limit, then raises
def test_too_many_pixels_are_refused(over, monkeypatch, random_pixels, encode):
    data = encode(random_pixels(9, height=10, width=12))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(120 / over))
    with pytest.raises(UserError, match=r"the picture has more than .* pixels"):
        decode(data)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP"])
def test_truncated_pictures_are_refused(kind, share, random_pixels, encode):
    data = encode(random_pixels(10, height=31, width=37), kind)
    with pytest.raises(UserError, match="the picture"):
        decode(data[: int(share * len(data))])


def test_text_and_unsafe_formats_are_refused(encode):
    with pytest.raises(UserError, match=r"the picture is not an image \(AVIF, BMP"):
        decode(b"hello")
    assert "EPS" not in FORMATS
    with pytest.raises(UserError, match="is not an image"):
        decode(encode(Image.new("RGB", (3, 2)), "EPS"))


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="the picture cannot be read as an image: No such file"):
        decode(tmp_path / "none.png")


def test_fit_keeps_an_image_that_fits(random_pixels):
    pixels = random_pixels(11)
    assert fit_image(pixels, 7) is pixels


@pytest.mark.parametrize("shape", [(23, 41), (41, 23)])
def test_fit_is_resize_then_crop(shape, random_pixels):
    # 23 pixels scaled to 46: the middle of the longer side falls on whole pixels
    pixels = random_pixels(12, *shape)
    height, width = shape
    whole = np.asarray(
        Image.fromarray(pixels).resize((2 * width, 2 * height), Image.Resampling.BICUBIC)
    )
    top, left = height - 23, width - 23
    np.testing.assert_array_equal(fit_image(pixels, 46), whole[top : top + 46, left : left + 46])


def test_fit_keeps_the_central_fraction(random_pixels):
    pixels = random_pixels(13, 32, 32)
    np.testing.assert_array_equal(fit_image(pixels, 28, crop=28 / 32), pixels[2:30, 2:30])


def test_fit_rounds_the_scaled_side_down(random_pixels):
    # floor(28 / 0.9) = 31 is one pixel less than the image has; floor(28 / 0.875) = 32 is not
    pixels = random_pixels(14, 32, 32)
    side = 32 * 28 / 31
    box = ((32 - side) / 2, (32 - side) / 2, (32 + side) / 2, (32 + side) / 2)
    scaled = Image.fromarray(pixels).resize((28, 28), Image.Resampling.BICUBIC, box=box)
    np.testing.assert_array_equal(fit_image(pixels, 28, crop=0.9), np.asarray(scaled))


def test_fit_of_a_thread_stays_small():
    thread = np.zeros((1, 100_003, 1), np.uint8)
    assert fit_image(thread, 224).shape == (224, 224, 1)


def rule(name, edge=0, **settings):
    return ImageFit(rule=FitRule(name), edge=edge, **settings)


@pytest.mark.parametrize("filter", Resample)
@pytest.mark.parametrize(("height", "width"), [(31, 57), (57, 31), (5, 5), (2, 3)])
def test_both_sides_are_squashed(filter, height, width, random_pixels):
    pixels = random_pixels(14, height=height, width=width)
    whole = Image.fromarray(pixels).resize((24, 24), Image.Resampling[filter.name])
    squashed = fit_image(pixels, 20, fit=rule("squash", 24, resample=filter))
    np.testing.assert_array_equal(squashed, np.asarray(whole)[2:22, 2:22])


@pytest.mark.parametrize(("rounds", "left"), [(False, 1), (True, 2)])  # of a margin of 3
def test_the_middle_of_an_odd_margin(rounds, left, random_pixels):
    pixels = random_pixels(15, height=20, width=23)
    fitted = fit_image(pixels, 20, fit=rule("shorter", rounds_half=rounds))
    np.testing.assert_array_equal(fitted, pixels[:, left : left + 20])


def test_the_shorter_side_is_scaled_to_whole_pixels(random_pixels):
    pixels = random_pixels(16, height=37, width=29)
    whole = np.asarray(Image.fromarray(pixels).resize((24, 30), Image.Resampling.BICUBIC))
    fitted = fit_image(pixels, 20, fit=rule("shorter", 24))
    np.testing.assert_array_equal(fitted, whole[5:25, 2:22])


def test_a_long_thin_picture_is_scaled_in_part(random_pixels, monkeypatch):
    pixels = random_pixels(17, height=9, width=90)
    as_a_whole = fit_image(pixels, 20, fit=rule("shorter", 24)).astype(int)
    monkeypatch.setattr(images, "_MOST_PIXELS", 100)
    assert np.abs(fit_image(pixels, 20, fit=rule("shorter", 24)) - as_a_whole).max() <= 1
    thread = np.zeros((1, 30_000, 1), np.uint8)
    assert fit_image(thread, 224, fit=rule("shorter")).shape == (224, 224, 1)


def test_an_edge_below_the_models_size_is_refused():
    data = DataConfig(fit=rule("squash", 24))
    data.require_size(24)
    with pytest.raises(UserError, match=r"\(24\) must not be smaller than model.image_size \(25\)"):
        data.require_size(25)


@pytest.mark.parametrize(
    ("settings", "report"),
    [
        ({"fit": rule("squash"), "eval_crop": 0.9}, "'eval_crop' is for data.fit.rule = \"cut\""),
        ({"fit": {"edge": 5}}, "'edge' is for fit.rule"),
        ({"fit": {"rule": FitRule.SQUASH, "edge": 9000}}, "'edge' must lie within 0 and 8,192"),
    ],
)
def test_rules_that_contradict_themselves_are_refused(settings, report):
    fit = settings["fit"]
    with pytest.raises(UserError, match=report):
        DataConfig(**settings | {"fit": ImageFit(**fit) if isinstance(fit, dict) else fit})

"""One picture: decode it, give it the model's channels, fit it to the model's size."""

import io
import math
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mpcvit.artifacts.image_fit import FitRule, ImageFit
from mpcvit.errors import UserError

# Pillow knows more, among them EPS, which it hands to Ghostscript
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm"),
        *(".ppm", ".tif", ".tiff", ".webp"),
    )
)

_GREY = frozenset(("1", "L", "LA", "La"))
_COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"))
_LARGEST_SQUARE = ImageFit()
_MOST_PIXELS = 2**24  # that a picture may have after scaling, before its middle is cut out


def decode_image(data_or_path: bytes | Path, *, channels: int, where: str) -> np.ndarray:
    """Decode one picture to uint8 [height, width, channel], upright.

    Grey becomes RGB by repetition. Of 16 bits the upper 8 are kept, and of an animation
    the first frame. Other colours (CMYK, palettes) become RGB, and alpha that hides
    nothing is dropped. Refused, with `where` as the sentence's subject: what Pillow cannot
    read to its end, transparency, numbers of unknown range, and pixel counts beyond
    Pillow's limit.

    >>> buffer = io.BytesIO()
    >>> Image.new("L", (3, 2), 7).save(buffer, "PNG")
    >>> decode_image(buffer.getvalue(), channels=3, where="example").shape
    (2, 3, 3)
    """
    source = io.BytesIO(data_or_path) if isinstance(data_or_path, bytes) else data_or_path
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(source, formats=FORMATS) as image:
                ImageOps.exif_transpose(image, in_place=True)
                pixels = _take_pixels(image, where)
    except UserError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise UserError(
            f"{where} has more than {Image.MAX_IMAGE_PIXELS or 0:,} pixels; scale it down first"
        ) from error
    except UnidentifiedImageError as error:
        raise UserError(f"{where} is not an image ({', '.join(FORMATS)})") from error
    except Exception as error:  # on corrupt data Pillow's decoders raise whatever they stumble on
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{where} cannot be read as an image: {reason}") from error
    return match_channels(pixels.reshape(*pixels.shape[:2], -1), channels=channels, where=where)


def match_channels(image: np.ndarray, *, channels: int, where: str) -> np.ndarray:
    """Repeat a grey image for an RGB model; refuse any other difference."""
    found = image.shape[-1]
    if found == channels:
        return image
    if (found, channels) == (1, 3):
        return np.repeat(image, 3, axis=-1)
    raise UserError(
        f"{where} has {found} {'channel' if found == 1 else 'channels'}, "
        f"but the model takes {channels} (model.channels)"
    )


def fit_image(
    image: np.ndarray, size: int, crop: float = 1.0, fit: ImageFit = _LARGEST_SQUARE
) -> np.ndarray:
    """Return an image of `size` x `size` pixels, by the rule of `fit`.

    The rule `cut` scales the shorter side to floor(size / crop) and cuts size x size from
    the middle: timm's crop_pct, but in one step. The others scale first, to whole pixels,
    and cut then, as Hugging Face and torchvision do.

    >>> fit_image(np.zeros((4, 6, 3), np.uint8), 5, crop=0.8).shape
    (5, 5, 3)
    """
    height, width, channels = image.shape
    if height == width == size and crop == 1 and fit.edge_for(size) == size:
        return image
    picture = Image.fromarray(image[..., 0] if channels == 1 else image)
    filter = Image.Resampling[fit.resample.name]
    if fit.rule is FitRule.CUT:
        scaled = picture.resize((size, size), filter, box=_middle(width, height, size, crop))
    else:
        scaled = _scale_and_cut(picture, size, fit, filter)
    return np.asarray(scaled).reshape(size, size, channels)


def _middle(width: int, height: int, size: int, crop: float) -> tuple[float, float, float, float]:
    """Return the box in a picture that becomes the model's image."""
    side = min(height, width) * size / math.floor(size / crop)
    left, top = (width - side) / 2, (height - side) / 2
    # rounding may push the far edge past the picture by one part in 2**53
    return left, top, min(left + side, width), min(top + side, height)


def _scale_and_cut(
    picture: Image.Image, size: int, fit: ImageFit, filter: Image.Resampling
) -> Image.Image:
    edge, (width, height) = fit.edge_for(size), picture.size
    wide = tall = edge
    if fit.rule is FitRule.SHORTER:
        shorter = min(width, height)
        wide, tall = int(edge * width / shorter), int(edge * height / shorter)
    left, top = ((side - size) / 2 for side in (wide, tall))
    left, top = (round(left), round(top)) if fit.rounds_half else (int(left), int(top))
    if wide * tall <= _MOST_PIXELS:
        return picture.resize((wide, tall), filter).crop((left, top, left + size, top + size))
    # a long thin picture is never blown up as a whole; its pixels may differ by a rounding
    across, down = width / wide, height / tall
    box = (left * across, top * down, (left + size) * across, (top + size) * down)
    return picture.resize((size, size), filter, box=box)


def normalisation(
    mean: tuple[float, ...], std: tuple[float, ...], channels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Turn mean and deviation on [0, 1] into `normalise`'s factor and offset for uint8."""
    if not len(mean) == len(std) == channels:
        raise UserError(
            f"data.mean has {len(mean)} and data.std {len(std)} entries, "
            f"but the images have {channels} channels"
        )
    factor = 1 / (255 * np.array(std))
    return factor.astype(np.float32), (-np.array(mean) / np.array(std)).astype(np.float32)


def normalise(images: np.ndarray, factor: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Bring uint8 pixels to float32 with zero mean and unit deviation.

        (x / 255 - mean) / std  =  x * factor + offset

    >>> normalise(np.array([[[[0], [255]]]], np.uint8), *normalisation((0.5,), (0.5,), 1)).tolist()
    [[[[-1.0], [1.0]]]]
    """
    # rows instead of pixels, or NumPy's inner loops would be as short as the channels are few
    rows = images.reshape(*images.shape[:-2], -1)
    normalised = rows * np.tile(factor, images.shape[-2])
    normalised += np.tile(offset, images.shape[-2])
    return normalised.reshape(images.shape)


def _take_pixels(image: Image.Image, where: str) -> np.ndarray:
    """Return a picture's 8-bit pixels, grey or RGB, or refuse what has no such form."""
    if image.mode.startswith("I;16"):
        values = np.asarray(image)
        if (values == image.info.get("transparency", -1)).any():
            raise UserError(_transparent(where))
        return (values >> 8).astype(np.uint8)  # as Pillow does with 16-bit RGB
    if image.mode not in _GREY | _COLOUR:
        raise UserError(
            f"{where} holds numbers of unknown range ({image.mode}); convert it to 8 or 16 bits"
        )
    if image.has_transparency_data:
        image = image.convert("RGBA") if image.mode not in ("LA", "La") else image.convert("LA")
        if image.getchannel("A").getextrema() != (255, 255):
            raise UserError(_transparent(where))
    return np.asarray(image.convert("L" if image.mode in _GREY else "RGB"))


def _transparent(where: str) -> str:
    return (
        f"{where} is transparent in places, and what should show through is not known; "
        "flatten it onto a background first"
    )

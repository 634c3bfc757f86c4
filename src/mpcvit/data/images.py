"""One picture: decode it, give it the model's channels, fit it to the model's size."""

import io
import math
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mpcvit.errors import UserError

# Pillow knows more, among them EPS, which it hands to Ghostscript
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"))

_CHANNELS_BY_MODE = {"1": 1, "L": 1, "P": 3, "RGB": 3}


def decode_image(data_or_path: bytes | Path, *, channels: int, where: str) -> np.ndarray:
    """Decode one picture to uint8 [height, width, channel], upright.

    Grey becomes RGB by repetition; nothing that loses information is done.
    Refused, with `where` as the sentence's subject: what Pillow cannot read to
    its end, 16-bit samples, alpha, CMYK, animation, and pixel counts beyond
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
                _refuse_lossy(image, where)
                ImageOps.exif_transpose(image, in_place=True)
                mode = "RGB" if _CHANNELS_BY_MODE[image.mode] == 3 else "L"
                pixels = np.asarray(image if image.mode == mode else image.convert(mode))
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


def fit_image(image: np.ndarray, size: int, crop: float = 1.0) -> np.ndarray:
    """Scale an image and keep its central square of `size` pixels, bicubic.

        scale the shorter side to floor(size / crop), cut size x size from the middle

    That is timm's crop_pct. Both happen in one step, so that a long thin picture
    is never blown up as a whole.

    >>> fit_image(np.zeros((4, 6, 3), np.uint8), 5, crop=0.8).shape
    (5, 5, 3)
    """
    height, width, channels = image.shape
    if height == width == size and crop == 1:
        return image
    side = min(height, width) * size / math.floor(size / crop)
    left, top = (width - side) / 2, (height - side) / 2
    # rounding may push the far edge past the picture by one part in 2**53
    box = (left, top, min(left + side, width), min(top + side, height))
    scaled = Image.fromarray(image[..., 0] if channels == 1 else image).resize(
        (size, size), Image.Resampling.BICUBIC, box=box
    )
    return np.asarray(scaled).reshape(size, size, channels)


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


def _refuse_lossy(image: Image.Image, where: str) -> None:
    # a camera's MPO holds a preview besides the picture, not an animation
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise UserError(f"{where} holds several frames; a single picture is needed")
    # Pillow narrows 16-bit RGB on the way in, and only the raw mode of its tiles tells
    raw_modes = " ".join(str(tile.args) for tile in getattr(image, "tile", ()))
    if image.mode[:1] in ("I", "F") or (image.format in ("PNG", "TIFF") and ";16" in raw_modes):
        raise UserError(f"{where} has more than 8 bits per channel; convert it to 8 bits first")
    if image.mode[-1:] in ("A", "a") or "transparency" in image.info:
        raise UserError(f"{where} has an alpha channel; flatten it onto a background first")
    if image.mode not in _CHANNELS_BY_MODE:
        raise UserError(f"{where} is a {image.mode} image; convert it to RGB or grey first")

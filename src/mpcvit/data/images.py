"""Pictures: decoded, fitted to a model's size, normalised; files, folders and arrays of them."""

import io
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.image_fit import FitRule, ImageFit
from mpcvit.errors import UserError
from mpcvit.progress import Progress, quiet

# Pillow knows more, among them EPS, which it hands to Ghostscript
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm"),
        *(".ppm", ".tif", ".tiff", ".webp"),
    )
)

FEWEST_PHOTOS = 20
_LISTED = 5  # files that a message names
_GREY = frozenset(("1", "L", "LA", "La"))
_COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"))
_LARGEST_SQUARE = ImageFit()
_MOST_PIXELS = 2**24  # that a picture may have after scaling, before its middle is cut out
Picture = str | Path | np.ndarray
Read = TypeVar("Read")


def decode_image(data_or_path: bytes | Path, *, channels: int, where: str) -> np.ndarray:
    """Decode one picture to uint8 [height, width, channel], upright.

    Grey becomes RGB by repetition, and RGB that shows only greys becomes grey. Of 16 bits
    the upper 8 are kept, and of an animation the first frame. Other colours (CMYK,
    palettes) become RGB, and alpha that hides nothing is dropped. Refused, with `where` as
    the sentence's subject: what Pillow cannot read to its end, transparency, numbers of
    unknown range, and pixel counts beyond Pillow's limit.

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
    """Repeat a grey image for an RGB model, and take RGB that shows only greys for grey.

    Any other difference is refused.
    """
    found = image.shape[-1]
    if found == channels:
        return image
    if (found, channels) == (1, 3):
        return np.repeat(image, 3, axis=-1)
    if (found, channels) == (3, 1) and (image == image[..., :1]).all():
        return image[..., :1]
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
    and cut then, as Hugging Face and torchvision do; what patches do not cover is left out.

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
    left, top = ((side - fit.whole(size)) / 2 for side in (wide, tall))
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


class Inputs(NamedTuple):
    """Images as a model takes them."""

    images: np.ndarray  # float32 [image, height, width, channel], normalised
    resized: int  # how many were not of the model's size


def list_pictures(paths: Sequence[str | Path]) -> list[Path]:
    """Return files as they are, and for a folder its pictures, sorted by name."""
    pictures: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            if not path.exists():
                raise UserError(f"there is no file {path}")
            pictures.append(path)
            continue
        found = sorted(entry for entry in path.iterdir() if is_picture(entry))
        if not found:
            below = (entry for entry in sorted(path.iterdir()) if not entry.name.startswith("."))
            full = next((entry for entry in below if any(map(is_picture, entry.glob("*")))), None)
            advice = "" if full is None else f" of its own; name those below it, such as {full}"
            raise UserError(f"the folder {path} holds no images{advice}")
        pictures += found
    return pictures


def is_picture(path: Path) -> bool:
    """Return whether a file's name is that of a picture, and not hidden."""
    is_named = path.suffix.lower() in SUFFIXES and not path.name.startswith(".")
    return is_named and path.is_file()


def make_inputs(images: Sequence[Picture], model: ModelConfig, data: DataConfig) -> Inputs:
    """Decode, resize and normalise files or uint8 arrays, as in evaluation.

    All that cannot be used is named at once, with a line for each.
    """
    if not len(images):
        raise UserError("there is no image")
    size, resized, fitted, refused = model.image_size, 0, [], []
    for index, image in enumerate(images):
        try:
            pixels = _decode(image, index, model.channels)
        except UserError as error:
            refused.append(str(error))
            continue
        resized += pixels.shape[:2] != (size, size)
        fitted.append(fit_image(pixels, size, data.eval_crop, data.fit))
    if refused:
        raise UserError("\n".join(refused))
    constants = normalisation(data.mean, data.std, model.channels)
    return Inputs(normalise(np.stack(fitted), *constants), resized)


def _decode(image: Picture, index: int, channels: int) -> np.ndarray:
    if not isinstance(image, np.ndarray):
        return decode_image(Path(image), channels=channels, where=str(image))
    if image.ndim == 2:
        image = image[:, :, None]
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != channels:
        raise UserError(
            f"image {index} is an array of {image.dtype} {image.shape}, but uint8 "
            f"(height, width, {channels}) is expected"
        )
    return image


@dataclass(frozen=True, kw_only=True)
class Photos:
    """Pictures of a folder as a model takes them, and the files that cannot be read."""

    images: np.ndarray  # float32 [image, height, width, channel], normalised
    skipped: tuple[str, ...] = ()  # a sentence for each file


def read_photos(
    folder: Path,
    model: ModelConfig,
    data: DataConfig,
    *,
    most: int = 1024,
    strict: bool = False,
    progress: Progress = quiet,
) -> Photos:
    """Read the pictures below a folder, at most `most` of them, from all over it.

    A file that cannot be read is skipped, or refused if `strict`.
    """
    pictures = _find_pictures(Path(folder))
    images, skipped = _read_each(
        [pictures[index] for index in spread_evenly(len(pictures), most)],
        lambda path: make_inputs([path], model, data).images[0],
        lambda path: strict,
        partial(progress, "reading photos"),
    )
    if len(images) < FEWEST_PHOTOS:
        reason = f" ({list_skipped(skipped)})" if skipped else ""
        raise UserError(
            f"{folder} holds {len(pictures):,} {'picture' if len(pictures) == 1 else 'pictures'}, "
            f"and {len(images)} of them can be used"
            f"{reason}; calibration needs at least {FEWEST_PHOTOS}"
        )
    return Photos(images=np.stack(images), skipped=skipped)


def spread_evenly(total: int, count: int) -> np.ndarray:
    """Return the indices of some of many, from the first to the last."""
    return np.linspace(0, total - 1, min(count, total)).astype(int)


def sift_pictures(
    paths: Sequence[str | Path], *, strict: bool = False, progress: Progress = quiet
) -> tuple[list[Path], tuple[str, ...]]:
    """Return the pictures of files and folders, and a sentence for each that cannot be read.

    A file that is named itself must be readable, and with `strict` all must.
    """
    named = {Path(path) for path in paths}

    def read(path: Path) -> Path:
        decode_image(path, channels=3, where=str(path))
        return path

    kept, skipped = _read_each(
        list_pictures(paths),
        read,
        lambda path: strict or path in named,
        partial(progress, "looking at pictures"),
    )
    if not kept:
        raise UserError(f"no picture can be read: {list_skipped(skipped)}")
    return kept, skipped


def _read_each(
    pictures: Sequence[Path],
    read: Callable[[Path], Read],
    is_needed: Callable[[Path], bool],
    progress: Callable[[int, int], None],
) -> tuple[list[Read], tuple[str, ...]]:
    """Return what can be read of pictures, and a sentence for each of the others."""
    values, skipped = [], []
    for done, path in enumerate(pictures):
        try:
            values.append(read(path))
        except UserError as error:
            if is_needed(path):
                raise
            skipped.append(str(error))
        progress(done + 1, len(pictures))
    return values, tuple(skipped)


def list_skipped(skipped: tuple[str, ...]) -> str:
    """Return the first few sentences about files that were skipped.

    >>> list_skipped(("a.png is not an image", "b.png is not an image"))
    'a.png is not an image; b.png is not an image'
    """
    rest = f"; and {len(skipped) - _LISTED} more" if len(skipped) > _LISTED else ""
    return "; ".join(skipped[:_LISTED]) + rest


def _find_pictures(folder: Path) -> list[Path]:
    """Return the pictures in a folder and in the folders below it, hidden ones left out."""
    if not folder.is_dir():
        found = f"{folder} is a file" if folder.exists() else f"there is no folder {folder}"
        raise UserError(f"{found}; name a folder of pictures")
    pictures = sorted(
        file
        for file in folder.rglob("*")
        if is_picture(file)
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    if not pictures:
        raise UserError(f"the folder {folder} holds no images")
    return pictures

"""How other projects prepare pictures: the files that say it, in this project's terms.

Hugging Face writes `preprocessor_config.json`, timm a `pretrained_cfg`. Both scale a
picture first and cut the middle out of it then. What cannot be honoured is refused by the
name of its key.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpcvit.artifacts.image_fit import FitRule, ImageFit, Resample
from mpcvit.foreign.unusable import UnusableError

_PILLOW = (  # filters by Pillow's numbers
    *(Resample.NEAREST, Resample.LANCZOS, Resample.BILINEAR),
    *(Resample.BICUBIC, Resample.BOX, Resample.HAMMING),
)
_TIMM_CROP = 0.875  # timm's, where a configuration has none
_LEAST_CROP = 0.01
_LARGEST_SCALE = 1e6  # of a pixel; others would make mean and deviation endless
_DO = frozenset(("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"))


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The preparation of pictures. `mean`, `std` and `fit` are None where nothing says it."""

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    fit: ImageFit | None = None
    image_size: int | None = None  # of the prepared image


@dataclass(frozen=True, kw_only=True)
class _Processor:
    """The defaults of an image processor of Hugging Face."""

    is_square: bool  # whether `size` as one number means both sides
    resample: Resample
    crops: bool


_PROCESSORS = {
    "ViT": _Processor(is_square=True, resample=Resample.BILINEAR, crops=False),
    "DeiT": _Processor(is_square=True, resample=Resample.BICUBIC, crops=True),
    "Bit": _Processor(is_square=False, resample=Resample.BICUBIC, crops=True),
    "CLIP": _Processor(is_square=False, resample=Resample.BICUBIC, crops=True),
    "Siglip": _Processor(is_square=True, resample=Resample.BICUBIC, crops=False),
}


def read_huggingface(document: Mapping[str, Any], *, usual: str, channels: int) -> Preprocessing:
    """Read `preprocessor_config.json`, old or new; `usual` names the family's processor."""
    # versions of transformers write null for what they leave to the processor
    document = {key: value for key, value in document.items() if value is not None}
    if not document:
        return Preprocessing()
    processor = _find_processor(document, usual)
    for key, value in document.items():
        if key.startswith("do_") and type(value) is not bool:
            raise UnusableError(f"has {key} {value!r}, which must be true or false")
        if key.startswith("do_") and value and key not in _DO:
            raise UnusableError(f"has {key}, which cannot be honoured here: set it to false")
    if document.get("do_resize", True) is not True:
        raise UnusableError(
            "has do_resize = false, but pictures of any size must become the model's: "
            "set it to true there, and add size"
        )
    rule, edge = _find_size(document, processor)
    fit = ImageFit(rule=rule, edge=edge, resample=_find_filter(document, processor))
    mean, std = _find_normalisation(document, channels)
    size = _find_cut(document, processor, fit)
    return Preprocessing(mean=mean, std=std, fit=fit, image_size=size)


def read_timm(document: Mapping[str, Any], *, image_size: int, channels: int) -> Preprocessing:
    """Read the entries of a `pretrained_cfg`; empty ones say nothing."""
    mean, std = read_normalisation(document.get("mean"), document.get("std"), channels)
    if not {"crop_pct", "interpolation", "crop_mode", "mean"} & set(document):
        return Preprocessing(mean=mean, std=std)
    mode, name = document.get("crop_mode") or "center", document.get("interpolation") or "bicubic"
    rules = {"center": FitRule.SHORTER, "squash": FitRule.SQUASH}
    if not isinstance(mode, str) or mode not in rules:
        raise UnusableError(
            f"has crop_mode {mode!r}, but only center and squash can be read: set one of them there"
        )
    if name not in [filter.value for filter in Resample]:
        raise UnusableError(
            f"has interpolation {name!r}, which cannot be honoured here: set bicubic or "
            "another filter of Pillow there"
        )
    fraction = document.get("crop_pct") or _TIMM_CROP
    if type(fraction) not in (int, float) or not _LEAST_CROP <= fraction <= 1:
        raise UnusableError(f"has crop_pct {fraction!r}, which must lie within {_LEAST_CROP} and 1")
    fit = ImageFit(
        rule=rules[mode],
        edge=math.floor(image_size / fraction),
        resample=Resample(name),
        rounds_half=True,
    )
    return Preprocessing(mean=mean, std=std, fit=fit, image_size=image_size)


def read_normalisation(
    mean: Any, std: Any, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and std if both have one number per channel, else None twice."""
    means, stds = _numbers(mean, channels), _numbers(std, channels)
    if means is None or stds is None or min(stds) <= 0:
        return None, None
    return means, stds


def _find_processor(document: Mapping[str, Any], usual: str) -> _Processor:
    stated = document.get("image_processor_type", document.get("feature_extractor_type"))
    found = re.fullmatch(r"(\w+?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?", str(stated))
    name = usual if stated is None else (found[1] if found else str(stated))
    if name not in _PROCESSORS:
        raise UnusableError(
            f"is for a {stated}, but only those of {', '.join(_PROCESSORS)} can be read"
        )
    return _PROCESSORS[name]


def _find_size(document: Mapping[str, Any], processor: _Processor) -> tuple[FitRule, int]:
    size = document.get("size")
    if isinstance(size, Mapping) and set(size) == {"shortest_edge"}:
        return FitRule.SHORTER, _pixels(size["shortest_edge"], "size.shortest_edge")
    if isinstance(size, Mapping | list | tuple):
        return FitRule.SQUASH, _square(size, "size")
    edge = _pixels(size, "size")
    return FitRule.SQUASH if processor.is_square else FitRule.SHORTER, edge


def _find_cut(document: Mapping[str, Any], processor: _Processor, fit: ImageFit) -> int:
    """Return the size of the part that is cut out of the middle."""
    if not document.get("do_center_crop", processor.crops):
        if fit.rule is FitRule.SHORTER:
            raise UnusableError(
                "scales the shorter side and cuts nothing, so images are not square: "
                "set do_center_crop to true there, or size to a height and a width"
            )
        return fit.edge
    cut = _square(document.get("crop_size"), "crop_size")
    if cut > fit.edge:
        raise UnusableError(f"contradicts itself: crop_size is {cut}, but size only {fit.edge}")
    return cut


def _find_filter(document: Mapping[str, Any], processor: _Processor) -> Resample:
    number = document.get("resample")
    if number is None:
        return processor.resample
    if type(number) is not int or not 0 <= number < len(_PILLOW):
        raise UnusableError(f"has resample {number!r}, which is no filter of Pillow")
    return _PILLOW[number]


def _find_normalisation(
    document: Mapping[str, Any], channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and std for pixels in [0, 1]; other scales are taken into them."""
    scale = document.get("rescale_factor", 1 / 255) if document.get("do_rescale", True) else 1.0
    if type(scale) not in (int, float) or not 1 / _LARGEST_SCALE <= scale <= _LARGEST_SCALE:
        raise UnusableError(f"has rescale_factor {scale!r}, which must be a positive number")
    mean: Any = (0.0,) * channels
    std: Any = (1.0,) * channels
    if document.get("do_normalize", True):
        mean, std = document.get("image_mean"), document.get("image_std")
        if mean is None or std is None:
            return None, None
    means, stds = read_normalisation(mean, std, channels)
    if means is None or stds is None:
        raise UnusableError(
            f"has image_mean {mean} and image_std {std}, but a number for each of "
            f"{channels} channels is needed, and no deviation of 0"
        )
    if scale == 1 / 255:
        return means, stds
    return tuple(value / (255 * scale) for value in means), tuple(
        value / (255 * scale) for value in stds
    )


def _square(size: Any, key: str) -> int:
    """Return the side of a square that is given as a number, a pair, or height and width."""
    if isinstance(size, Mapping):
        if set(size) != {"height", "width"}:
            raise UnusableError(
                f"has {key} with {', '.join(map(str, size))}, but only height and width, "
                "or shortest_edge alone, can be read"
            )
        size = [size["height"], size["width"]]
    sides = size if isinstance(size, list | tuple) else [size]
    edges = {_pixels(side, key) for side in sides}
    if len(edges) != 1:
        raise UnusableError(f"has a {key} of {list(sides)}, but images must be square")
    return edges.pop()


def _pixels(value: Any, key: str) -> int:
    if type(value) is not int or value < 1:
        raise UnusableError(f"has {key} {value!r}, but a number of pixels is needed")
    return value


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        return None
    if not all(type(item) in (int, float) and math.isfinite(item) for item in value):
        return None
    return tuple(float(item) for item in value)

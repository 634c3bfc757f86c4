"""From matched tensors to this project's parameters: what its network has no name for is folded.

Layer scale goes into the linears before it. Register and distillation tokens become extra
tokens, which are positions alone. A second head is joined to the first.
"""

import math
from dataclasses import replace

import numpy as np

from mpcvit.artifacts.config import ModelConfig, Pooling
from mpcvit.foreign.mapping import Matched
from mpcvit.foreign.preprocessing import Preprocessing
from mpcvit.foreign.unusable import UnusableError
from mpcvit.model.positions import resize_positions

SECOND_HEAD = "second_head"
_SCALES = {"scale1_{n}": "blocks_{n}/attention/proj", "scale2_{n}": "blocks_{n}/mlp/down"}


def fold_scales(matched: Matched) -> None:
    """Fold layer scale into the linears whose outputs it multiplies."""
    for scales, linear in _SCALES.items():
        for block in range(matched.sizes["depth"]):
            scale = matched.parameters.pop(scales.format(n=block), None)
            if scale is not None:
                for part in ("kernel", "bias"):
                    name = f"{linear.format(n=block)}/{part}"
                    matched.parameters[name] = matched.parameters[name] * scale


def fold_defaults(matched: Matched) -> None:
    """Add the parameters that other networks do without: a bias of patches, and a last norm."""
    own, width = matched.parameters, matched.sizes["width"]
    own.setdefault("embed/patch/bias", np.zeros(width, np.float32))
    own.setdefault("norm/scale", np.ones(width, np.float32))
    own.setdefault("norm/bias", np.zeros(width, np.float32))


def join_heads(matched: Matched) -> bool:
    """Join two heads whose logits are averaged into one that reads both tokens."""
    own = matched.parameters
    if f"{SECOND_HEAD}/kernel" not in own:
        return False
    second = own.pop(f"{SECOND_HEAD}/kernel"), own.pop(f"{SECOND_HEAD}/bias")
    own["head/kernel"] = np.concatenate([own["head/kernel"], second[0]]) / 2
    own["head/bias"] = (own["head/bias"] + second[1]) / 2
    return True


def place_tokens(matched: Matched, pooling: Pooling, *, placed: int | None) -> tuple[int, int]:
    """Give every token its position; return the number of extra tokens and the patches' side.

    Positions may belong to all tokens, or to the patches with or without the class token.
    `placed` says how many tokens before the patches have one, where the source tells. What has
    none gets zeros. A class token that the head does not read is an extra token.
    """
    own, width = matched.parameters, matched.sizes["width"]
    position = own["embed/position"]
    extra = own.pop("extra_tokens", np.zeros((0, width), np.float32))
    token = own.get("embed/class_token")
    leading = len(extra) + (token is not None)
    counts = [leading, int(token is not None), 0] if placed is None else [placed]
    covered = next(
        (count for count in counts if _side(len(position) - count) is not None),
        None,
    )
    if covered is None:
        raise UnusableError(
            f"has positions for {len(position) - leading} patches, which do not make a square image"
        )
    patches = position[covered:]
    first = np.zeros((leading, width), np.float32)
    first[:covered] = position[:covered]
    first[leading - len(extra) :] += extra
    if token is not None and pooling is Pooling.MEAN:
        first[0] += own.pop("embed/class_token")
    own["embed/position"] = np.concatenate([first, patches])
    side = _side(len(patches))
    assert side is not None
    return leading - (pooling is not Pooling.MEAN), side


def _side(patches: int) -> int | None:
    """Return the side of a square of patches, or None if they make none.

    >>> _side(9), _side(8), _side(0)
    (3, None, None)
    """
    side = math.isqrt(max(0, patches))
    return side if side and side * side == patches else None


def change_size(
    model: ModelConfig,
    matched: Matched,
    image_size: int,
    *,
    antialias: bool,
) -> ModelConfig:
    """Return a model for images of another size; its positions are interpolated, bicubic."""
    if image_size == model.image_size:
        return model
    if image_size % model.patch_size:
        raise UnusableError(
            f"has patches of {model.patch_size} pixels, so an image of {image_size} "
            "pixels cannot be cut into them"
        )
    changed = replace(model, image_size=image_size)
    position = matched.parameters["embed/position"]
    matched.parameters["embed/position"] = resize_positions(
        position, changed.tokens, changed.patches, antialias=antialias
    )
    return changed


def scale_fit(preprocessing: Preprocessing, model: ModelConfig) -> Preprocessing:
    """Return how pictures are prepared for a model of another size.

    A prepared picture may be larger by less than a patch: a convolution does not reach the rest.
    """
    fit, before, size = preprocessing.fit, preprocessing.image_size, model.image_size
    if fit is None or before is None:
        return preprocessing
    if cover(before, model.patch_size) == size:
        return replace(preprocessing, fit=replace(fit, uncovered=before - size), image_size=size)
    return replace(preprocessing, fit=fit.scaled(before, size), image_size=size)


def cover(pixels: int, patch: int) -> int:
    """Return how many pixels whole patches cover.

    >>> cover(384, 14), cover(224, 16)
    (378, 224)
    """
    return pixels // patch * patch

"""What reading a foreign checkpoint gives, and the steps that all formats share."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Activation, BlockForm, ModelConfig, Pooling
from mpcvit.errors import UserError
from mpcvit.foreign.mapping import Matched
from mpcvit.foreign.tensor import Tensor


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A network of another project, in this project's terms.

    `mean`, `std` and `eval_crop` are what the images went through there, and
    None where the source does not say it.
    """

    model: ModelConfig
    architecture: Architecture
    parameters: dict[str, Any] = field(repr=False, compare=False)
    classes: tuple[str, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    eval_crop: float | None
    origin: str


@dataclass(frozen=True, kw_only=True)
class Options:
    """Facts that a user adds if the source does not state them."""

    heads: int | None = None
    class_names: tuple[str, ...] | None = None
    relu_after: bool = True


@dataclass(frozen=True, kw_only=True)
class Source:
    """One opened checkpoint: its tensors and the descriptions beside them.

    `config` and `preprocessing` come from a folder's JSON files, `arguments`
    from the training script that a checkpoint records.
    """

    origin: str
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


def describe_model(
    matched: Matched,
    origin: str,
    *,
    heads: int,
    block: BlockForm,
    norm_eps: float,
    activation: Activation = Activation.GELU,
    attention_eps: float = ModelConfig.attention_eps,
) -> ModelConfig:
    """Return the model's configuration; sizes follow from the shapes of its tensors."""
    sizes = matched.sizes
    has_class_token = "embed/class_token" in matched.parameters
    patches = sizes["tokens"] - has_class_token
    side = math.isqrt(max(0, patches))
    if patches < 1 or side * side != patches:
        raise UserError(
            f"{origin} has positions for {patches} patches, which do not make a square image"
        )
    try:
        return ModelConfig(
            image_size=side * sizes["patch"],
            patch_size=sizes["patch"],
            classes=sizes["classes"],
            depth=sizes["depth"],
            heads=heads,
            width=sizes["width"],
            channels=sizes["channels"],
            mlp_ratio=_ratio(sizes["hidden"], sizes["width"]),
            block=block,
            pooling=Pooling.CLASS if has_class_token else Pooling.MEAN,
            qkv_bias="blocks_0/attention/qkv/bias" in matched.parameters,
            norm_eps=norm_eps,
            activation=activation,
            attention_eps=attention_eps,
        )
    except ValueError as error:
        raise UserError(f"{origin} cannot be used: {error}") from error


def _ratio(hidden: int, width: int) -> float:
    """Return the ratio whose product with the width truncates to the hidden size.

    >>> int(11 * (15 / 11)), int(11 * _ratio(15, 11))
    (14, 15)
    """
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def choose_heads(
    *, stated: int | None, usual: int | None = None, options: Options, origin: str
) -> int:
    """Return the number of heads: stated by the source, else by the user, else usual."""
    if stated is not None and options.heads not in (None, stated):
        raise UserError(f"{origin} has {stated} heads, so --heads {options.heads} cannot be used")
    for heads in (stated, options.heads, usual):
        if heads is not None:
            return heads
    raise UserError(f"{origin} does not say how many attention heads it has: add --heads")


def name_classes(
    stated: Sequence[str] | None, count: int, *, options: Options, origin: str
) -> tuple[str, ...]:
    """Return the user's names, else the source's, else numbers."""
    if options.class_names is not None:
        if len(options.class_names) != count:
            raise UserError(
                f"{origin} has {count} classes, but {len(options.class_names)} names were given"
            )
        return options.class_names
    if stated is not None and len(stated) == count:
        return tuple(stated)
    return tuple(str(number) for number in range(count))


def read_normalisation(
    mean: Any, std: Any, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]] | tuple[None, None]:
    """Return mean and std if both have one number per channel, else None twice."""
    means, stds = _numbers(mean, channels), _numbers(std, channels)
    if means is None or stds is None or min(stds) <= 0:
        return None, None
    return means, stds


def read_fraction(value: Any) -> float | None:
    """Return a number in (0, 1], or None.

    >>> read_fraction(0.875), read_fraction(7), read_fraction("all")
    (0.875, None, None)
    """
    numbers = _numbers([value], 1)
    return numbers[0] if numbers is not None and 0 < numbers[0] <= 1 else None


def _numbers(value: Any, count: int) -> tuple[float, ...] | None:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        return None
    if not all(type(item) in (int, float) and math.isfinite(item) for item in value):
        return None
    return tuple(float(item) for item in value)

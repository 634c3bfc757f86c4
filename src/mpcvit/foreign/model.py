"""What reading a foreign checkpoint gives, and the steps that all formats share."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import Activation, BlockForm, DataConfig, ModelConfig, Pooling
from mpcvit.artifacts.image_fit import ImageFit
from mpcvit.errors import UserError
from mpcvit.foreign.assemble import fold_defaults, fold_scales, join_heads, place_tokens
from mpcvit.foreign.mapping import Matched
from mpcvit.foreign.preprocessing import Preprocessing
from mpcvit.foreign.tensor import Tensor
from mpcvit.foreign.unusable import UnusableError

# of Hugging Face; the second nests it, beside the tokenizer's settings
PREPROCESSORS = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, kw_only=True)
class ForeignModel:
    """A network of another project, in this project's terms.

    `preprocessing` is what the images went through there, as far as the source says it.
    """

    model: ModelConfig
    architecture: Architecture
    parameters: dict[str, Any] = field(repr=False, compare=False)
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    origin: str

    def data_config(
        self, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None
    ) -> DataConfig | None:
        """Return how pictures are prepared, or None if mean or std are not known."""
        own = self.preprocessing
        mean, std = mean or own.mean, std or own.std
        if mean is None or std is None:
            return None
        return DataConfig(mean=mean, std=std, fit=own.fit or ImageFit())


@dataclass(frozen=True, kw_only=True)
class Options:
    """Facts that a user adds if the source does not state them."""

    heads: int | None = None
    class_names: tuple[str, ...] | None = None
    relu_after: bool = True
    image_size: int | None = None


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
    preprocessor: str = PREPROCESSORS[0]  # the file that says how pictures are prepared
    arguments: Mapping[str, Any] = field(default_factory=dict)


def describe_model(
    matched: Matched,
    *,
    heads: int,
    block: BlockForm,
    norm_eps: float,
    pooling: Pooling | None = None,
    placed: int | None = None,
    activation: Activation = Activation.GELU,
    attention_eps: float = ModelConfig.attention_eps,
) -> ModelConfig:
    """Return the model's configuration, and make its parameters those of our network.

    Sizes follow from the shapes of the tensors. Without `pooling`, the head reads the class
    token if there is one. `placed` says how many tokens before the patches have positions.
    """
    own, sizes = matched.parameters, matched.sizes
    if sizes["classes"] == 1:
        raise UnusableError(
            "has a single output, so there are no classes to tell apart: train a "
            "classifier with two outputs or more"
        )
    if pooling is None:
        pooling = Pooling.CLASS if "embed/class_token" in own else Pooling.MEAN
    pooling = Pooling.CLASS_EXTRA if join_heads(matched) else pooling
    is_pooled_norm = "pooled_norm/scale" in own
    for part in ("scale", "bias") if is_pooled_norm else ():
        own[f"norm/{part}"] = own.pop(f"pooled_norm/{part}")
    fold_scales(matched)
    fold_defaults(matched)
    extra_tokens, side = place_tokens(matched, pooling, placed=placed)
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
            pooling=pooling,
            # of one token it is the same before and after
            pooled_norm=is_pooled_norm and pooling is Pooling.MEAN,
            extra_tokens=extra_tokens,
            embed_norm="embed/norm/scale" in own,
            qkv_bias="blocks_0/attention/qkv/bias" in own,
            norm_eps=norm_eps,
            activation=activation,
            attention_eps=attention_eps,
        )
    except UserError as error:
        raise UnusableError(f"cannot be used: {error}") from error


def _ratio(hidden: int, width: int) -> float:
    """Return the ratio whose product with the width truncates to the hidden size.

    >>> int(11 * (15 / 11)), int(11 * _ratio(15, 11))
    (14, 15)
    """
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def choose_heads(*, stated: int | None, usual: int | None = None, options: Options) -> int:
    """Return the number of heads: stated by the source, else by the user, else usual."""
    if stated is not None and options.heads not in (None, stated):
        raise UnusableError(f"has {stated} heads, so --heads {options.heads} cannot be used")
    for heads in (stated, options.heads, usual):
        if heads is not None:
            return heads
    raise UnusableError("does not say how many attention heads it has: add --heads")


def name_classes(stated: Any, count: int, *, key: str = "", options: Options) -> tuple[str, ...]:
    """Return the user's names, else those that the source has below `key`, else numbers."""
    if options.class_names is not None:
        if len(options.class_names) != count:
            raise UnusableError(
                f"has {count} classes, but {len(options.class_names)} names were given"
            )
        return options.class_names
    if not stated:
        return tuple(str(number) for number in range(count))
    numbers = [str(number) for number in range(count)]
    if isinstance(stated, Mapping) and set(stated) == set(numbers):
        stated = [stated[number] for number in numbers]
    if (
        not isinstance(stated, list)
        or len(stated) != count
        or not all(type(name) in (str, int) for name in stated)
    ):
        found = len(stated) if isinstance(stated, Mapping | list) else "no"
        raise UnusableError(
            f"has {count} classes, but {key} in its config.json has {found} names, or not "
            f"a name for each of the numbers 0 to {count - 1}: mend it, or add --class-names to "
            "mpcvit import"
        )
    return tuple(map(str, stated))

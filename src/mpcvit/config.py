"""Configuration: TOML into frozen dataclasses, checked key by key.

Each stage has one section. A section validates itself on construction; what it
refuses is reported with the key's path and, for a misspelling, the nearest
valid name.
"""

import dataclasses
import json
import math
import sys
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from mpcvit.arch import ActivationGranularity, AttentionKind, Granularity
from mpcvit.errors import UserError, nearest

if sys.version_info >= (3, 11):
    import tomllib
else:  # spu has wheels for 3.10 too, which lacks tomllib
    import tomli as tomllib


class DataSource(str, Enum):
    """How the images lie on disk; `auto` looks at the folder."""

    AUTO = "auto"
    DIGITS = "digits"
    PARQUET = "parquet"
    FOLDER = "folder"
    CIFAR_BINARY = "cifar_binary"


class BlockForm(str, Enum):
    """Where a block normalises.

    lite: x = norm2(x + attention(norm1(x))), then x + mlp(x)
    pre:  x = x + attention(norm1(x)), then x + mlp(norm2(x))
    """

    LITE = "lite"
    PRE = "pre"


class Pooling(str, Enum):
    CLASS = "class"
    MEAN = "mean"


class Activation(str, Enum):
    """The MLP's non-linearity."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    GELU_SIGMOID = "gelu_sigmoid"
    RELU = "relu"
    QUAD = "quad"


class NormForm(str, Enum):
    """How tokens are normalised.

    layer:  centred, divided by their deviation, then scaled and shifted
    linear: scaled and shifted alone, as THE-X does
    """

    LAYER = "layer"
    LINEAR = "linear"


class CostForm(str, Enum):
    """How the search adds up seconds.

    additive:      every head pays for itself, as in the paper
    shared-rounds: a layer pays its exchanges once, however many heads need them
    """

    ADDITIVE = "additive"
    SHARED_ROUNDS = "shared-rounds"


class Precision(str, Enum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the images come from and how they are normalised."""

    source: DataSource = DataSource.AUTO
    path: str = ""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    eval_crop: float = 1.0  # central fraction of a test image that is kept; timm's crop_pct
    workers: int = -1  # processes that augment; -1: one per spare core, at most 8

    def __post_init__(self) -> None:
        _require(len(self.mean) == len(self.std), "std", "must be as long as data.mean")
        _require(all(value > 0 for value in self.std), "std", "must be positive")
        _require(0 < self.eval_crop <= 1, "eval_crop", "must lie in (0, 1]")
        _require(self.workers >= -1, "workers", "must be -1 or more")


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """What happens to a training image, in this order."""

    crop_scale: tuple[float, float] = (1.0, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: float = 0.0
    rand_augment_ops: int = 0
    rand_augment_magnitude: float = 9.0
    rand_augment_std: float = 0.5
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_probability: float = 1.0
    mix_switch: float = 0.5  # chance of cutmix where both are on
    mix_off_epoch: int = 0  # from this epoch on no mixing; 0: never off
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name, (low, high) in (("crop_scale", self.crop_scale), ("crop_ratio", self.crop_ratio)):
            _require(0 < low <= high, name, "must be two increasing positive numbers")
        _require(self.crop_scale[1] <= 1, "crop_scale", "must not exceed 1")
        for name in ("flip", "erasing", "mix_probability", "mix_switch"):
            _require(0 <= getattr(self, name) <= 1, name, "must lie in [0, 1]")
        for name in ("rand_augment_ops", "rand_augment_std", "mixup", "cutmix", "mix_off_epoch"):
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(
            0 <= self.rand_augment_magnitude <= 10, "rand_augment_magnitude", "must lie in [0, 10]"
        )
        _require(0 <= self.label_smoothing < 1, "label_smoothing", "must lie in [0, 1)")

    @property
    def changes_images(self) -> bool:
        """Whether an image may look different from one epoch to the next."""
        return self.crop_scale != (1, 1) or any(
            (self.flip, self.rand_augment_ops, self.erasing, self.mixup, self.cutmix)
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of the network and the constants of its formulas."""

    image_size: int
    patch_size: int
    classes: int
    depth: int
    heads: int
    width: int
    channels: int = 3
    mlp_ratio: float = 2.0
    block: BlockForm = BlockForm.LITE
    pooling: Pooling = Pooling.CLASS
    qkv_bias: bool = False
    norm: NormForm = NormForm.LAYER
    norm_eps: float = 1e-5
    attention: AttentionKind = (
        AttentionKind.SOFTMAX
    )  # of every head, where no architecture is given
    activation: Activation = Activation.GELU
    attention_eps: float = 1e-8  # in the denominators of relu_softmax and quad2
    quad2_offset: float = 1e-3  # the c of 2Quad
    xnorm_eps: float = 1e-12  # beside the squares that xnorm sums; keeps gradients finite
    linformer_ratio: float = 0.5
    the_x_hidden: int = 64
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            *("image_size", "patch_size", "classes", "depth", "heads", "width", "channels"),
            *("mlp_ratio", "norm_eps", "the_x_hidden"),
        ):
            _require(getattr(self, name) > 0, name, "must be positive")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            _require(0 <= getattr(self, name) < 1, name, "must lie in [0, 1)")
        for name in ("attention_eps", "xnorm_eps"):
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(0 < self.linformer_ratio <= 1, "linformer_ratio", "must lie in (0, 1]")
        _require(
            self.width % self.heads == 0,
            "width",
            f"({self.width}) must be divisible by model.heads ({self.heads})",
        )
        _require(
            self.image_size % self.patch_size == 0,
            "image_size",
            f"({self.image_size}) must be divisible by model.patch_size ({self.patch_size})",
        )

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens(self) -> int:
        return self.patches + (self.pooling is Pooling.CLASS)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def hidden(self) -> int:
        return int(self.width * self.mlp_ratio)

    @property
    def linformer_tokens(self) -> int:
        return max(1, round(self.linformer_ratio * self.tokens))


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimiser, schedule and how often the run is saved."""

    epochs: int
    batch_size: int = 128
    learning_rate: float = 5e-4
    min_learning_rate: float = 1e-5
    warmup_epochs: float = 0.0
    warmup_learning_rate: float = 1e-6
    weight_decay: float = 5e-2
    clip_norm: float = 0.0  # 0: no clipping
    piece_size: int = 0  # images that a device takes at once; 0: 8 on a CPU, else all
    precision: Precision = Precision.FLOAT32
    eval_batch_size: int = 256
    eval_every_epochs: int = 1
    checkpoint_every_minutes: float = 5.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "eval_batch_size"):
            _require(getattr(self, name) > 0, name, "must be positive")
        _require(self.eval_every_epochs > 0, "eval_every_epochs", "must be positive")
        for name in (
            *("min_learning_rate", "warmup_epochs", "warmup_learning_rate", "weight_decay"),
            *("clip_norm", "checkpoint_every_minutes", "piece_size"),
        ):
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(
            self.min_learning_rate <= self.learning_rate,
            "min_learning_rate",
            "must not exceed train.learning_rate",
        )
        _require(self.batch_size % 2 == 0, "batch_size", "must be even: images are mixed in pairs")


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The search for an architecture: what may change, and the weight of latency."""

    epochs: int = 300
    kept: AttentionKind = AttentionKind.RELU_SOFTMAX  # where alpha is 1
    replacement: AttentionKind = AttentionKind.SCALING  # where alpha is 0
    granularity: Granularity = Granularity.HEAD
    activation: ActivationGranularity = ActivationGranularity.NONE
    cost: CostForm = CostForm.ADDITIVE
    latency_weight: float = 1e-5  # lambda, of attention's seconds
    activation_weight: float = 0.0  # eta, of GeLU's; 0: lambda Lat(GeLU) / Lat(attention)

    def __post_init__(self) -> None:
        _require(self.epochs > 0, "epochs", "must be positive")
        for name in ("latency_weight", "activation_weight"):
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(
            self.kept is not self.replacement,
            "replacement",
            f"must differ from search.kept ({self.kept.value})",
        )


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """Retraining of a found architecture: its length and its three losses."""

    epochs: int = 600
    temperature: float = 1.0
    ce_weight: float = 1.0  # chi
    logits_weight: float = 1.0  # beta, of the divergence from the teacher's logits
    feature_weight: float = 1.0  # gamma, of the distance from its last tokens

    def __post_init__(self) -> None:
        _require(self.epochs > 0, "epochs", "must be positive")
        _require(self.temperature > 0, "temperature", "must be positive")
        for name in ("ce_weight", "logits_weight", "feature_weight"):
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(
            self.ce_weight + self.logits_weight + self.feature_weight > 0,
            "ce_weight",
            "and the other two weights are all 0: nothing would be learnt",
        )


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Several hosts, as `jax.distributed` wants them; empty on one host."""

    coordinator: str = ""  # host:port of process 0
    processes: int = 1
    process: int = 0

    def __post_init__(self) -> None:
        _require(self.processes > 0, "processes", "must be positive")
        _require(
            0 <= self.process < self.processes, "process", "must lie below distributed.processes"
        )
        _require(
            self.processes == 1 or bool(self.coordinator),
            "coordinator",
            "must name host:port of process 0 when there are several processes",
        )


@dataclass(frozen=True, kw_only=True)
class Config:
    """One experiment, whole."""

    model: ModelConfig
    train: TrainConfig
    name: str = "run"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        channels = self.model.channels
        _require(
            len(self.data.mean) == channels,
            "data.mean",
            f"has {len(self.data.mean)} entries, but model.channels is {channels}",
        )
        _require(
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\"),
            "name",
            "must be a plain folder name",
        )
        _require(self.seed >= 0, "seed", "must not be negative")
        _require(
            self.train.batch_size % (2 * self.distributed.processes) == 0,
            "train.batch_size",
            "must be divisible by twice distributed.processes",
        )

    @property
    def folder(self) -> Path:
        """Where a run goes unless the user says otherwise."""
        return Path("runs") / self.name


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file and apply `a.b=value` overrides."""
    document = read_toml(path, "config file")
    for override in overrides:
        _apply(document, override)
    return from_plain(Config, document, str(path))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UserError(f"there is no {what} {path}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} {path}: {error}") from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


Section = TypeVar("Section")


def from_plain(section: type[Section], document: Any, origin: str) -> Section:
    """Build a section from plain values, as TOML or JSON give them."""
    return _build(section, document, "", origin)


def to_plain(value: Any) -> Any:
    """The plain values behind a section: `from_plain`'s inverse."""
    if dataclasses.is_dataclass(value):
        names = (item.name for item in dataclasses.fields(value))
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


class _RefusedError(ValueError):
    """A value that a section refuses; `_build` adds where it stands."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"{key} {reason}")
        self.key, self.reason = key, reason


def _require(condition: bool, key: str, reason: str) -> None:
    if not condition:
        raise _RefusedError(key, reason)


def _apply(document: dict[str, Any], override: str) -> None:
    """Set one `a.b=value` in a document.

    A value is read as TOML, and as a plain string where that fails, so that
    `--set model.attention=softmax` needs no quotes.

    >>> document = {"train": {"epochs": 3}}
    >>> _apply(document, "train.epochs=7")
    >>> _apply(document, "model.attention=scaling")
    >>> document
    {'train': {'epochs': 7}, 'model': {'attention': 'scaling'}}
    """
    key, separator, text = override.partition("=")
    path = [part.strip() for part in key.split(".")]
    if not separator or not all(path):
        raise UserError(f"--set {override!r} must have the form section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    section = document
    for part in path[:-1]:
        section = section.setdefault(part, {})
        if not isinstance(section, dict):
            raise UserError(f"--set {override!r}: '{part}' is a value, not a section")
    section[path[-1]] = value


def _build(cls: type[Section], document: Any, prefix: str, origin: str) -> Section:
    if not isinstance(document, Mapping):
        raise UserError(
            f"{origin}: '{prefix}' must be a section, not {json.dumps(document, default=str)}"
        )
    hints = typing.get_type_hints(cls)
    fields = {item.name: item for item in dataclasses.fields(typing.cast(Any, cls))}
    for key in document:
        if key not in fields:
            known = [_join(prefix, name) for name in fields]
            path = _join(prefix, str(key))
            raise UserError(f"{origin}: unknown key '{path}'; {nearest(path, known)}")
    values: dict[str, Any] = {}
    for name, item in fields.items():
        path = _join(prefix, name)
        if name in document:
            values[name] = _convert(hints[name], document[name], path, origin)
        elif item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING:
            kind = "section" if dataclasses.is_dataclass(hints[name]) else "key"
            raise UserError(f"{origin}: {kind} '{path}' is missing")
    try:
        return cls(**values)
    except _RefusedError as refusal:
        raise UserError(f"{origin}: '{_join(prefix, refusal.key)}' {refusal.reason}") from None


def _convert(hint: Any, value: Any, path: str, origin: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path, origin)
    if isinstance(hint, type) and issubclass(hint, Enum):
        names = [member.value for member in hint]
        if value not in names:
            raise UserError(f"{origin}: '{path}' cannot be {value!r}; {nearest(str(value), names)}")
        return hint(value)
    if typing.get_origin(hint) is tuple:
        return _convert_tuple(hint, value, path, origin)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is float and number:
        if not math.isfinite(value):
            raise UserError(f"{origin}: '{path}' must be finite, not {value}")
        return float(value)
    if type(value) is hint:
        return value
    raise UserError(
        f"{origin}: '{path}' must be {_name_hint(hint)}, not {json.dumps(value, default=str)}"
    )


def _convert_tuple(hint: Any, value: Any, path: str, origin: str) -> tuple[Any, ...]:
    items = typing.get_args(hint)
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{origin}: '{path}' must be a list, not {json.dumps(value, default=str)}")
    if items[-1] is Ellipsis:
        items = (items[0],) * len(value)
    if len(items) != len(value) or not value:
        raise UserError(
            f"{origin}: '{path}' must have {len(items) or 'some'} entries, not {len(value)}"
        )
    return tuple(
        _convert(item, entry, f"{path}[{index}]", origin)
        for index, (item, entry) in enumerate(zip(items, value, strict=True))
    )


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _name_hint(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
    return names.get(hint, str(hint))

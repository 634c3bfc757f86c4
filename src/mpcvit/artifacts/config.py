"""Configuration: one frozen dataclass for each section of a TOML file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from mpcvit.artifacts.architecture import ActivationGranularity, Granularity
from mpcvit.artifacts.forms import Activation, NormForm, grid_of
from mpcvit.codec import decode, override, read_toml, require
from mpcvit.errors import nearest
from mpcvit.kinds.table import RELU_SOFTMAX, SCALING, SOFTMAX, Kind, all_constants


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
    validation_images: int = 0  # set apart from training, and judged by instead of test images
    train_images: int = 0  # number of training images to use, evenly sampled; 0: all
    workers: int = -1  # threads that augment; -1: one per spare core, at most 8

    def __post_init__(self) -> None:
        require(len(self.mean) > 0, "mean", "must have an entry for each channel")
        require(len(self.mean) == len(self.std), "std", "must be as long as data.mean")
        require(all(value > 0 for value in self.std), "std", "must be positive")
        require(0 < self.eval_crop <= 1, "eval_crop", "must lie in (0, 1]")
        for name in ("train_images", "validation_images"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(self.workers >= -1, "workers", "must be -1 or more")


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
            require(0 < low <= high, name, "must be two increasing positive numbers")
        require(self.crop_scale[1] <= 1, "crop_scale", "must not exceed 1")
        for name in ("flip", "erasing", "mix_probability", "mix_switch"):
            require(0 <= getattr(self, name) <= 1, name, "must lie in [0, 1]")
        for name in ("rand_augment_ops", "rand_augment_std", "mixup", "cutmix", "mix_off_epoch"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(
            0 <= self.rand_augment_magnitude <= 10, "rand_augment_magnitude", "must lie in [0, 10]"
        )
        require(0 <= self.label_smoothing < 1, "label_smoothing", "must lie in [0, 1)")

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
    layer_norms: tuple[str, ...] = ()  # which stay layer norms, such as "1.norm2" or "norm"
    norm_eps: float = 1e-5
    clip: float = 0.0  # bound of what a batch norm gives; 0: none
    layer_tokens: tuple[int, ...] = ()  # of each layer, merged from the layer before; (): all
    head_dim_qk: int = 0  # columns of a head's queries and keys; 0: as many as of its values
    attention: Kind = SOFTMAX  # of every head, where no architecture is given
    activation: Activation = Activation.GELU
    attention_eps: float = 1e-8  # beside the sums that kinds divide by
    quad2_offset: float = 1e-3  # the c of 2Quad
    xnorm_eps: float = 1e-12  # beside the squares that xnorm sums; keeps gradients finite
    linformer_ratio: float = 0.5
    the_x_hidden: int = 64
    constants: Mapping[str, float] = field(default_factory=dict, hash=False)  # of kinds' rows
    dropout: float = 0.0
    attention_dropout: float = 0.0
    stochastic_depth: float = 0.0

    def __post_init__(self) -> None:
        for name in (
            *("image_size", "patch_size", "classes", "depth", "heads", "width", "channels"),
            *("mlp_ratio", "norm_eps", "the_x_hidden"),
        ):
            require(getattr(self, name) > 0, name, "must be positive")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            require(0 <= getattr(self, name) < 1, name, "must lie in [0, 1)")
        for name in ("attention_eps", "xnorm_eps", "clip", "head_dim_qk"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(0 < self.linformer_ratio <= 1, "linformer_ratio", "must lie in (0, 1]")
        known = all_constants()
        for name, value in self.constants.items():
            require(name in known, "constants", f"has no {name!r}; {nearest(name, [*known])}")
            require(known[name].allows(value), f"constants.{name}", known[name].rule)
        require(
            self.width % self.heads == 0,
            "width",
            f"({self.width}) must be divisible by model.heads ({self.heads})",
        )
        require(
            self.image_size % self.patch_size == 0,
            "image_size",
            f"({self.image_size}) must be divisible by model.patch_size ({self.patch_size})",
        )
        for name in ("layer_norms", "clip"):
            require(
                not getattr(self, name) or self.norm is NormForm.BATCH,
                name,
                f'is for model.norm = "batch", not "{self.norm.value}"',
            )
        for name in self.layer_norms:
            known = nearest(name, self.norm_places)
            require(name in self.norm_places, "layer_norms", f"names no norm {name!r}; {known}")
        if self.layer_tokens:
            self._require_schedule()

    def _require_schedule(self) -> None:
        counts = self.layer_tokens
        require(
            len(counts) == self.depth,
            "layer_tokens",
            f"has {len(counts)} entries, but model.depth is {self.depth}",
        )
        for before, count in zip((self.tokens, *counts), counts, strict=False):
            reason = self.refuse_merge(before, count)
            require(not reason, "layer_tokens", reason)

    def refuse_merge(self, before: int, count: int) -> str:
        """Return why the tokens cannot be merged to `count`, or nothing."""
        if count <= before and self.grid(count) is not None:
            return ""
        possible = [str(n) for n in range(self.tokens, 0, -1) if self.grid(n) is not None]
        return (
            f"cannot go from {before} to {count} tokens: "
            f"merging pairs of neighbours leaves {', '.join(possible)}"
        )

    @property
    def norm_places(self) -> list[str]:
        """Return the name of every norm, in the order of the network."""
        blocks = (f"{index}.{name}" for index in range(self.depth) for name in ("norm1", "norm2"))
        return [*blocks, "norm"]

    def grid(self, tokens: int) -> tuple[int, int] | None:
        """Return rows and columns of the patches among `tokens`, or None if impossible."""
        side = self.image_size // self.patch_size
        return grid_of(side, tokens - (self.pooling is Pooling.CLASS))

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
    def qk_dim(self) -> int:
        return self.head_dim_qk or self.head_dim

    @property
    def hidden(self) -> int:
        return int(self.width * self.mlp_ratio)

    def constant(self, name: str) -> float:
        """Return a constant of an attention kind, as given or as the kind's row has it."""
        return self.constants.get(name, all_constants()[name].default)

    def linformer_tokens(self, tokens: int) -> int:
        """Return how many keys Linformer makes of those of a layer."""
        return max(1, round(self.linformer_ratio * tokens))


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
    norm_transition_epochs: float = 0.0  # over which layer norms turn into batch norms; 0: at once
    piece_size: int = 0  # images that a device takes at once; 0: 8 on a CPU, else all
    precision: Precision = Precision.FLOAT32
    eval_batch_size: int = 256
    eval_every_epochs: int = 1
    checkpoint_every_minutes: float = 5.0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "learning_rate", "eval_batch_size"):
            require(getattr(self, name) > 0, name, "must be positive")
        require(self.eval_every_epochs > 0, "eval_every_epochs", "must be positive")
        for name in (
            *("min_learning_rate", "warmup_epochs", "warmup_learning_rate", "weight_decay"),
            *("clip_norm", "norm_transition_epochs", "checkpoint_every_minutes", "piece_size"),
        ):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(
            self.min_learning_rate <= self.learning_rate,
            "min_learning_rate",
            "must not exceed train.learning_rate",
        )
        require(self.batch_size % 2 == 0, "batch_size", "must be even: images are mixed in pairs")


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The search for an architecture: what may change, and the weight of latency."""

    epochs: int = 300
    kept: Kind = RELU_SOFTMAX  # where alpha is 1
    replacement: Kind = SCALING  # where alpha is 0
    granularity: Granularity = Granularity.HEAD
    activation: ActivationGranularity = ActivationGranularity.NONE
    cost: CostForm = CostForm.ADDITIVE
    latency_weight: float = 1e-5  # lambda, of attention's seconds
    activation_weight: float = 0.0  # eta, of GeLU's; 0: lambda Lat(GeLU) / Lat(attention)

    def __post_init__(self) -> None:
        require(self.epochs > 0, "epochs", "must be positive")
        for name in ("latency_weight", "activation_weight"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(
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
        require(self.epochs > 0, "epochs", "must be positive")
        require(self.temperature > 0, "temperature", "must be positive")
        for name in ("ce_weight", "logits_weight", "feature_weight"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(
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
        require(self.processes > 0, "processes", "must be positive")
        require(
            0 <= self.process < self.processes, "process", "must lie below distributed.processes"
        )
        require(
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
        require(
            len(self.data.mean) == channels,
            "data.mean",
            f"has {len(self.data.mean)} entries, but model.channels is {channels}",
        )
        require(
            self.name not in ("", ".", "..") and not set(self.name) & set("/\\"),
            "name",
            "must be a plain folder name",
        )
        require(self.seed >= 0, "seed", "must not be negative")
        require(
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
    for assignment in overrides:
        override(document, assignment)
    return decode(Config, document, str(path))

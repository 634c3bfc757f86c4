"""Configuration: one frozen dataclass for each section of a TOML file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from mpcvit.artifacts.choices import Choice, DeriveConfig, SearchConfig
from mpcvit.artifacts.forms import Activation, NormForm
from mpcvit.artifacts.image_fit import FitRule, ImageFit
from mpcvit.artifacts.model_config import BlockForm as BlockForm
from mpcvit.artifacts.model_config import ModelConfig
from mpcvit.artifacts.model_config import Pooling as Pooling
from mpcvit.artifacts.shipped import CONFIGS, find_shipped
from mpcvit.codec import ADDED, decode, override, read_toml, require
from mpcvit.errors import UserError


class DataSource(str, Enum):
    """A layout of images on disk; `auto` looks at the folder."""

    AUTO = "auto"
    DIGITS = "digits"
    PARQUET = "parquet"
    FOLDER = "folder"
    CIFAR_BINARY = "cifar_binary"


class Precision(str, Enum):
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """A data set: its place, how images get the model's size, and their normalisation."""

    source: DataSource = DataSource.AUTO
    path: str = ""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    eval_crop: float = 1.0  # central fraction of a test image that is kept; timm's crop_pct
    fit: ImageFit = field(default=ImageFit(), metadata=ADDED)
    validation_images: int = 0  # set apart from training, and judged by instead of test images
    train_images: int = 0  # number of training images to use, evenly sampled; 0: all
    workers: int = -1  # threads that augment; -1: one per spare core, at most 8

    def __post_init__(self) -> None:
        require(len(self.mean) > 0, "mean", "must have an entry for each channel")
        require(len(self.mean) == len(self.std), "std", "must be as long as data.mean")
        require(all(value > 0 for value in self.std), "std", "must be positive")
        require(0 < self.eval_crop <= 1, "eval_crop", "must lie in (0, 1]")
        require(
            self.eval_crop == 1 or self.fit.rule is FitRule.CUT,
            "eval_crop",
            f'is for data.fit.rule = "cut"; "{self.fit.rule.value}" has data.fit.edge',
        )
        for name in ("train_images", "validation_images"):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(self.workers >= -1, "workers", "must be -1 or more")

    def require_size(self, image_size: int) -> None:
        """Refuse pictures that are scaled to less than the model's size."""
        require(
            self.fit.edge_for(image_size) >= self.fit.whole(image_size),
            "data.fit.edge",
            f"({self.fit.edge}) must not be smaller than model.image_size ({image_size})"
            + (f" and data.fit.uncovered ({self.fit.uncovered})" if self.fit.uncovered else ""),
        )


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """A list of changes to a training image, in this order."""

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
    odd: float = field(default=0.0, metadata=ADDED)  # share of pictures of no class, before mixing

    def __post_init__(self) -> None:
        for name, (low, high) in (("crop_scale", self.crop_scale), ("crop_ratio", self.crop_ratio)):
            require(0 < low <= high, name, "must be two increasing positive numbers")
        require(self.crop_scale[1] <= 1, "crop_scale", "must not exceed 1")
        for name in ("flip", "erasing", "mix_probability", "mix_switch", "odd"):
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
            (self.flip, self.rand_augment_ops, self.erasing, self.mixup, self.cutmix, self.odd)
        )


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
    outlier_weight: float = field(default=0.0, metadata=ADDED)  # of batch norms' far values
    piece_size: int = 0  # images that a device takes at once; 0: 8 on a CPU, else all
    remat: bool = False  # whether gradients compute each block again, to save memory
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
            *("clip_norm", "norm_transition_epochs", "outlier_weight"),
            *("checkpoint_every_minutes", "piece_size"),
        ):
            require(getattr(self, name) >= 0, name, "must not be negative")
        require(
            self.min_learning_rate <= self.learning_rate,
            "min_learning_rate",
            "must not exceed train.learning_rate",
        )
        require(self.batch_size % 2 == 0, "batch_size", "must be even: images are mixed in pairs")


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
    """A whole configuration of one experiment."""

    model: ModelConfig
    train: TrainConfig
    name: str = "run"
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    derive: DeriveConfig = field(default=DeriveConfig(), metadata=ADDED)
    distill: DistillConfig = field(default_factory=DistillConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        channels = self.model.channels
        self.data.require_size(self.model.image_size)
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

    def require_searchable(self) -> None:
        """Refuse a search among choices that the model has made, or does not have."""
        model, choices = self.model, self.search.choices
        require(
            Choice.NORM not in choices or model.norm is NormForm.LAYER,
            "model.norm",
            'must be "layer" where search.choices has "norm": the search replaces some',
        )
        require(
            Choice.ACTIVATION not in choices or model.activation is not Activation.QUADRATIC,
            "model.activation",
            'cannot be "quadratic" where search.choices has "activation"',
        )
        require(
            Choice.TOKENS not in choices or not model.layer_tokens,
            "model.layer_tokens",
            'is for the search to find where search.choices has "tokens"',
        )
        for before, count in zip(
            (model.tokens, *self.search.token_counts), self.search.token_counts, strict=False
        ):
            reason = model.refuse_merge(before, count)
            if not reason and count == before:
                reason = f"repeats {count}"
            require(not reason, "search.token_counts", reason)

    @property
    def folder(self) -> Path:
        """Where a run goes unless the user says otherwise."""
        return Path("runs") / self.name


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file, or a shipped one by its name, and apply `a.b=value` overrides."""
    path = find_shipped(Path(path), CONFIGS, "configuration")
    document = read_toml(path, "configuration")
    for assignment in overrides:
        override(document, assignment)
    if "model" not in document:
        raise UserError(
            f"{path}: section 'model' is missing; write one, or start from a trained model "
            "with --from"
        )
    return decode(Config, document, str(path))

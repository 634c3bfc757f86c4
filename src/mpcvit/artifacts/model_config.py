"""The shape of a network, and the constants of its formulas."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from mpcvit.artifacts.forms import Activation, NormForm, grid_of
from mpcvit.codec import ADDED, require
from mpcvit.errors import nearest
from mpcvit.kinds.table import SOFTMAX, Kind, all_constants


class BlockForm(str, Enum):
    """A place in a block where it normalises.

    lite: x = norm2(x + attention(norm1(x))), then x + mlp(x)
    pre:  x = x + attention(norm1(x)), then x + mlp(norm2(x))
    """

    LITE = "lite"
    PRE = "pre"


class Pooling(str, Enum):
    """A way to read the last tokens; two things are read side by side.

    class:       the class token
    mean:        the mean of the patches; there is no class token
    class_mean:  the class token and the mean of the patches
    class_extra: the class token and the first extra token
    """

    CLASS = "class"
    MEAN = "mean"
    CLASS_MEAN = "class_mean"
    CLASS_EXTRA = "class_extra"


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
    pooled_norm: bool = field(default=False, metadata=ADDED)  # the last norm is after the mean
    extra_tokens: int = field(default=0, metadata=ADDED)  # learnt, before the patches
    embed_norm: bool = field(default=False, metadata=ADDED)  # a layer norm after the embedding
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
        for name in ("attention_eps", "xnorm_eps", "clip", "head_dim_qk", "extra_tokens"):
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
        require(
            self.pooling is Pooling.MEAN or not self.pooled_norm,
            "pooled_norm",
            f'is for model.pooling = "mean", not "{self.pooling.value}"',
        )
        require(
            self.extra_tokens > 0 or self.pooling is not Pooling.CLASS_EXTRA,
            "extra_tokens",
            'must be positive for model.pooling = "class_extra"',
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
        return grid_of(self.image_size // self.patch_size, tokens - self.leading_tokens)

    @property
    def patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def has_class_token(self) -> bool:
        return self.pooling is not Pooling.MEAN

    @property
    def leading_tokens(self) -> int:
        """Return how many tokens precede the patches."""
        return self.has_class_token + self.extra_tokens

    @property
    def tokens(self) -> int:
        return self.patches + self.leading_tokens

    @property
    def pooled_width(self) -> int:
        """Return how many numbers the head reads."""
        is_single = self.pooling in (Pooling.CLASS, Pooling.MEAN)
        return self.width if is_single else 2 * self.width

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def qk_dim(self) -> int:
        return self.head_dim_qk or self.head_dim

    @property
    def hidden(self) -> int:
        return int(self.width * self.mlp_ratio)

    def with_heads(self, heads: int) -> "ModelConfig":
        """Return the model with as many heads, widened until they divide its width."""
        return replace(self, heads=heads, width=-(-self.width // heads) * heads)

    def constant(self, name: str) -> float:
        """Return a constant of an attention kind, as given or as the kind's row has it."""
        return self.constants.get(name, all_constants()[name].default)

    def linformer_tokens(self, tokens: int) -> int:
        """Return how many keys Linformer makes of those of a layer."""
        return max(1, round(self.linformer_ratio * tokens))

"""Choices: what a search may choose in each layer, and how a layer mixes them meanwhile."""

from dataclasses import dataclass
from enum import Enum

from mpcvit.codec import require
from mpcvit.errors import UserError
from mpcvit.kinds.table import RELU_SOFTMAX, SCALING, Kind


class Choice(str, Enum):
    """A choice of a search, between something expensive and something cheap.

    attention:  the kind of each head (layer, row), by alpha
    norm:       layer or batch norm, at each place
    activation: the model's activation or a learnt quadratic, in each layer
    tokens:     how many tokens a layer has, merged from the layer before
    """

    ATTENTION = "attention"
    NORM = "norm"
    ACTIVATION = "activation"
    TOKENS = "tokens"


class Granularity(str, Enum):
    """A unit of attention that chooses by itself: a layer, a head or a row."""

    LAYER = "layer"
    HEAD = "head"
    ROW = "row"


class ActivationGranularity(str, Enum):
    """The granularity at which the search may drop GeLU; `none` keeps it everywhere."""

    NONE = "none"
    LAYER = "layer"
    TOKEN = "token"


class CostForm(str, Enum):
    """A way in which the search adds up seconds.

    additive:      every head pays for itself, as in the paper
    shared-rounds: a layer pays its exchanges once, however many heads need them
    """

    ADDITIVE = "additive"
    SHARED_ROUNDS = "shared-rounds"


@dataclass(frozen=True, kw_only=True)
class DeriveConfig:
    """How networks are taken from a search."""

    # The whole residual passes a layer norm in at least one of this many layers in a row; 0: in
    # none. More than 1 needs train.outlier_weight: else trainings collapse (docs/results.md).
    layer_norm_every: int = 1

    def __post_init__(self) -> None:
        require(self.layer_norm_every >= 0, "layer_norm_every", "must not be negative")


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The search for an architecture: what may change, and the weight of latency."""

    epochs: int = 300
    choices: tuple[Choice, ...] = (Choice.ATTENTION,)
    kept: Kind = RELU_SOFTMAX  # where alpha is 1
    replacement: Kind = SCALING  # where alpha is 0
    granularity: Granularity = Granularity.HEAD
    activation: ActivationGranularity = ActivationGranularity.NONE
    token_counts: tuple[int, ...] = ()  # that layers may merge to; (): merged once or twice
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
        require(Choice.ATTENTION in self.choices, "choices", 'must have "attention" among them')
        for choice, key, value in (
            (Choice.ACTIVATION, "activation", ActivationGranularity.TOKEN),
            (Choice.ACTIVATION, "activation", ActivationGranularity.LAYER),
            (Choice.TOKENS, "activation", ActivationGranularity.TOKEN),
            (Choice.TOKENS, "granularity", Granularity.ROW),
        ):
            require(
                choice not in self.choices or getattr(self, key) is not value,
                key,
                f'cannot be "{value.value}" where search.choices has "{choice.value}"',
            )
        require(
            not self.token_counts or Choice.TOKENS in self.choices,
            "token_counts",
            'is for search.choices with "tokens"',
        )

    @property
    def is_the_papers(self) -> bool:
        """Return whether heads alone are chosen, and GeLU by its threshold, as in the paper."""
        return set(self.choices) == {Choice.ATTENTION}


@dataclass(frozen=True, kw_only=True)
class LayerMixture:
    """A layer under search: each head computes two kinds at once, weighed by alpha.

    Where `activation` is searched, the MLP weighs its non-linearity against
    the identity by beta; with `quadratic`, against a learnt quadratic. With `norm`, each
    norm is a layer norm and a batch norm at once. Tokens are weighed against those
    merged to each of `token_counts`.
    """

    kept: Kind
    replacement: Kind
    granularity: Granularity
    activation: ActivationGranularity
    norm: bool = False
    quadratic: bool = False
    token_counts: tuple[int, ...] = ()

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset((self.kept, self.replacement))

    def alpha_shape(self, *, heads: int, tokens: int) -> tuple[int, int]:
        """Return heads by rows, with a 1 where they share one choice."""
        return {
            Granularity.LAYER: (1, 1),
            Granularity.HEAD: (heads, 1),
            Granularity.ROW: (heads, tokens),
        }[self.granularity]

    def beta_size(self, *, tokens: int) -> int:
        """Return the choices over the tokens of an MLP; 0 where none is searched."""
        if self.quadratic:
            return 1
        return {
            ActivationGranularity.NONE: 0,
            ActivationGranularity.LAYER: 1,
            ActivationGranularity.TOKEN: tokens,
        }[self.activation]


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """A description of what every head and MLP of a network may become."""

    layers: tuple[LayerMixture, ...]

    @property
    def mixes_norms(self) -> bool:
        """Whether the norm before the head is both norms at once, as those of the layers."""
        return any(layer.norm for layer in self.layers)

    def require_depth(self, depth: int) -> None:
        if len(self.layers) != depth:
            raise UserError(f"the mixture has {len(self.layers)} layers, but the model has {depth}")

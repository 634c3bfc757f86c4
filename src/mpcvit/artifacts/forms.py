"""Forms: what a layer is beside its heads and its MLP: tokens, norms and activation."""

from dataclasses import dataclass
from enum import Enum

from mpcvit.codec import require


class Activation(str, Enum):
    """The MLP's non-linearity."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"
    GELU_SIGMOID = "gelu_sigmoid"
    RELU = "relu"
    QUAD = "quad"
    QUADRATIC = "quadratic"  # a x^2 + b x + c, learnt for each channel


class NormForm(str, Enum):
    """A way to normalise tokens.

    layer:  centred, divided by their deviation, then scaled and shifted
    linear: scaled and shifted alone, as THE-X does
    batch:  as layer, but each channel over images and tokens; constants once trained
    """

    LAYER = "layer"
    LINEAR = "linear"
    BATCH = "batch"


@dataclass(frozen=True, kw_only=True)
class LayerForm:
    """A layer whose every choice is made: by its architecture, or by the model."""

    tokens: int
    norm1: NormForm
    norm2: NormForm
    activation: Activation


@dataclass(frozen=True, kw_only=True)
class FormChoice:
    """An architecture's choices for a layer; None leaves it to the model's configuration."""

    norm1: NormForm | None = None
    norm2: NormForm | None = None
    activation: Activation | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        require(self.tokens is None or self.tokens > 0, "tokens", "must be positive")


def grid_of(side: int, patches: int) -> tuple[int, int] | None:
    """Return rows and columns of patches that are merged in pairs, or None if impossible.

    Pairs of columns and pairs of rows are merged in turn, columns first.

    >>> grid_of(8, 64), grid_of(8, 32), grid_of(8, 16)
    ((8, 8), (8, 4), (4, 4))
    >>> grid_of(8, 24) is None
    True
    """
    rows = columns = side
    while rows * columns > patches:
        if rows == columns and columns % 2:
            return None
        rows, columns = (rows, columns // 2) if rows == columns else (columns, columns)
    return (rows, columns) if rows * columns == patches else None

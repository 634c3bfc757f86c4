"""The table of attention kinds: the one place where a kind is declared.

A row is the value that configurations and architectures hold, and a file holds
its name. Files, pictures, prices, sites to approximate and lists of commands
are read from here. What a kind computes is in the file of the room `attention`
that has its name.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mpcvit.errors import UserError, nearest
from mpcvit.kinds import costs


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The properties of softmax that a kind keeps for every row of scores."""

    monotone: bool = False
    non_negative: bool = False
    normalised: bool = False


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A number of a kind's formula: its default, and which other values it may have."""

    default: float
    allows: Callable[[float], bool] = math.isfinite
    rule: str = "must be finite"


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """An attention kind, as files, pictures and prices need to know it.

    `sites` are the functions that lowering approximates for it, and `eps_fields`
    the keys of a model whose value must not round to zero. `constants` are
    numbers of its formula by name; `[model.constants]` changes them.
    """

    name: str
    symbol: str
    marks: Marks
    cost: Callable[[costs.ModelShape], costs.ChoiceCost]
    sites: tuple[str, ...] = ()
    eps_fields: tuple[str, ...] = ()
    constants: Mapping[str, Constant] = field(default_factory=dict)

    @property
    def value(self) -> str:
        """The name in files, as `MlpForm` has it."""
        return self.name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Kind({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return find_kind, (self.name,)  # a copy, or one in another process, is the same row

    def encoded(self) -> str:
        return self.name

    @classmethod
    def decoded(cls, document: Any, where: str) -> "Kind":
        if not isinstance(document, str) or document not in KINDS:
            raise UserError(f"{where} cannot be {document!r}; {nearest(str(document), [*KINDS])}")
        return KINDS[document]


def find_kind(name: str) -> Kind:
    """Return a kind by its name.

    >>> find_kind("scaling").symbol
    'S'
    """
    if name not in KINDS:
        raise UserError(f"there is no attention kind {name!r}; {nearest(name, [*KINDS])}")
    return KINDS[name]


def all_constants() -> dict[str, Constant]:
    """Return the constants of all kinds by name."""
    return {name: own for kind in KINDS.values() for name, own in kind.constants.items()}


def parse_kinds(text: str) -> tuple[Kind, ...]:
    """Return kinds from their names between commas."""
    return tuple(find_kind(name.strip()) for name in text.split(","))


SOFTMAX = Kind(
    name="softmax",
    symbol="E",
    marks=Marks(monotone=True, non_negative=True, normalised=True),
    sites=("exponential", "row_scale", "denominator"),
    cost=lambda model: costs.by_scores(model, costs.softmax_of(model.tokens)),
)
LINFORMER = Kind(
    name="linformer",
    symbol="L",
    marks=Marks(monotone=True, non_negative=True, normalised=True),
    sites=("exponential", "row_scale", "denominator"),
    cost=costs.linformer,
)
RELU = Kind(
    name="relu",
    symbol="P",
    marks=Marks(monotone=True, non_negative=True),
    cost=lambda model: costs.by_scores(model, costs.RELU),
)
RELU6 = Kind(
    name="relu6",
    symbol="6",
    marks=Marks(monotone=True, non_negative=True),
    cost=lambda model: costs.by_scores(model, costs.RELU, costs.RELU),
)
SPARSEMAX = Kind(
    name="sparsemax",
    symbol="M",
    marks=Marks(monotone=True, non_negative=True),
    cost=lambda model: costs.by_scores(model, costs.CONSTANT, costs.RELU, costs.RELU),
)
XNORM = Kind(
    name="xnorm",
    symbol="X",
    marks=Marks(monotone=True),
    sites=("query_length", "product_length"),
    eps_fields=("xnorm_eps",),
    cost=costs.xnorm,
)
SQUARE = Kind(
    name="square",
    symbol="Q",
    marks=Marks(non_negative=True),
    cost=lambda model: costs.by_scores(model, costs.PRODUCT),
)
QUAD2 = Kind(  # 2Quad, of MPCFormer
    name="quad2",
    symbol="2",
    marks=Marks(non_negative=True, normalised=True),
    sites=("denominator",),
    eps_fields=("attention_eps",),
    cost=lambda model: costs.by_scores(model, costs.PRODUCT, costs.DIVISION),
)
SCALING = Kind(  # ScaleAttn
    name="scaling",
    symbol="S",
    marks=Marks(monotone=True),
    cost=lambda model: costs.linearly(
        model, costs.CONSTANT.of(model.tokens * model.head_dim).times(2)
    ),
)
RELU_SOFTMAX = Kind(  # RSAttn
    name="relu_softmax",
    symbol="R",
    marks=Marks(monotone=True, non_negative=True, normalised=True),
    sites=("denominator",),
    eps_fields=("attention_eps",),
    cost=lambda model: costs.by_scores(model, costs.RELU_SOFTMAX),
)
THE_X = Kind(
    name="the_x",
    symbol="T",
    marks=Marks(),
    sites=("cube",),
    cost=costs.the_x,
)
RELU_BY_KEYS = Kind(
    name="relu_by_keys",
    symbol="N",
    marks=Marks(monotone=True, non_negative=True),
    cost=lambda model: costs.by_scores(model, costs.CONSTANT, costs.RELU),
)
SQUARE_BY_KEYS = Kind(  # of PriViT
    name="square_by_keys",
    symbol="V",
    marks=Marks(non_negative=True),
    cost=lambda model: costs.by_scores(model, costs.PRODUCT, costs.CONSTANT),
)
POWER_SOFTMAX = Kind(
    name="power_softmax",
    symbol="W",
    marks=Marks(non_negative=True, normalised=True),
    sites=("denominator",),
    eps_fields=("attention_eps",),
    constants={
        "power": Constant(
            default=4, allows=lambda p: p >= 2 and p % 2 == 0, rule="must be an even number, from 2"
        ),
        "power_offset": Constant(default=4),  # as the power: (1 + s / 4)^4 is near exp(s)
    },
    cost=lambda model: costs.by_scores(
        model,
        *([costs.CONSTANT] if abs(model.constant("power_offset")) > 1 else []),
        costs.power_of(int(model.constant("power"))),
        costs.DIVISION,
    ),
)

KINDS: dict[str, Kind] = {row.name: row for row in list(vars().values()) if isinstance(row, Kind)}
"""All kinds by name, in the order of the rows above; pictures and tables keep it."""

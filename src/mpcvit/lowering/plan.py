"""Plan: the public numbers of a lowered network; which stand-in computes what, and where."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jax import Array

from mpcvit.artifacts.config import Activation
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.lowering.approximation import Approximation, read_number, read_numbers
from mpcvit.lowering.even_chain import EvenChain
from mpcvit.lowering.inverse_root import InverseRoot
from mpcvit.lowering.reciprocal import Reciprocal
from mpcvit.lowering.steep_chain import Steep, SteepChain

Function = Callable[[Array], Array]
HEAD_NORM = "head norm"
OPTIONAL = ("cube",)  # computed as it is where no stand-in is close enough


def place_of(layer: int, name: str) -> str:
    """What users call a stand-in's place."""
    return f"block {layer} {name}"


@dataclass(frozen=True, kw_only=True)
class LayerFunctions:
    """What a layer cannot do by sums and products alone; None where it needs none."""

    norm1: Function | None
    exponential: Function | None
    temper: Function | None
    cube: Function | None
    query_length: Function | None
    product_length: Function | None
    denominator: Function | None
    norm2: Function | None
    activation: Function | None


@dataclass(frozen=True, kw_only=True)
class LayerPlan:
    """The stand-ins of one layer.

    `norm1` and `norm2` take the mean square of a centred token, `denominator`
    the sum of a row of attention weights. Softmax has an `exponential` of centred
    scores and a `temper` of a row's mean exponential, THE-X a `cube` of scores;
    XNorm has the lengths of rows of queries and of k' v.
    """

    norm1: InverseRoot | None
    exponential: SteepChain | None
    temper: Reciprocal | None
    cube: SteepChain | None
    query_length: InverseRoot | None
    product_length: InverseRoot | None
    denominator: Reciprocal | None
    norm2: InverseRoot | None
    activation: EvenChain | None


@dataclass(frozen=True, kw_only=True)
class Trust:
    """What an answer must keep to be believed.

    `bound` is the largest magnitude of a logit, or 0 if none is known. A lead below
    `doubt` may be another class's in the network itself. With `guard`, whether some
    stand-in left its interval is opened with the answer; places in `assured` cannot
    leave theirs before another does.
    """

    bound: float = 0.0
    doubt: float = 0.0
    guard: bool = False
    assured: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (0 <= self.bound < math.inf and 0 <= self.doubt < math.inf):
            raise UserError("neither a bound of logits nor a doubt can be negative")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The stand-ins and passes of a network. Both parties know them; weights are not among them."""

    layers: tuple[LayerPlan, ...]
    norm: InverseRoot | None
    trust: Trust = Trust()

    def named(self) -> dict[str, Approximation]:
        """Every stand-in by its place."""
        places: dict[str, Approximation | None] = {
            place_of(index, name): own
            for index, layer in enumerate(self.layers)
            for name, own in vars(layer).items()
        }
        places[HEAD_NORM] = self.norm
        return {place: own for place, own in places.items() if own is not None}

    @property
    def exchanges(self) -> int:
        """Of all stand-ins together, in a ring that truncates locally."""
        return sum(own.exchanges for own in self.named().values())

    def require(self, needed: Sequence[LayerFunctions], norm: Function | None) -> None:
        """Refuse a plan that lacks a stand-in which the network calls."""
        if len(needed) != len(self.layers):
            raise UserError("its plan is of another depth")
        for index, (layer, exact) in enumerate(zip(self.layers, needed, strict=True)):
            for name, function in vars(exact).items():
                if function is not None and getattr(layer, name) is None and name not in OPTIONAL:
                    raise UserError(f"its plan has no stand-in for {place_of(index, name)}")
        if norm is not None and self.norm is None:
            raise UserError(f"its plan has no stand-in for {HEAD_NORM}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "layers": [
                {name: _encode(own) for name, own in vars(layer).items()} for layer in self.layers
            ],
            "norm": _encode(self.norm),
            "trust": encode(self.trust),
        }

    @classmethod
    def from_dict(cls, document: Any) -> "Plan":
        """Decode what may come from a peer, and believe nothing of it."""
        layers = document["layers"]
        if not isinstance(layers, list):
            raise UserError("a plan's layers must be a list")
        return cls(
            layers=tuple(
                LayerPlan(
                    norm1=_decode(layer["norm1"], InverseRoot),
                    exponential=_decode(layer["exponential"], SteepChain),
                    temper=_decode(layer["temper"], Reciprocal),
                    cube=_decode(layer["cube"], SteepChain),
                    query_length=_decode(layer["query_length"], InverseRoot),
                    product_length=_decode(layer["product_length"], InverseRoot),
                    denominator=_decode(layer["denominator"], Reciprocal),
                    norm2=_decode(layer["norm2"], InverseRoot),
                    activation=_decode(layer["activation"], EvenChain),
                )
                for layer in layers
            ),
            norm=_decode(document["norm"], InverseRoot),
            trust=decode(Trust, document["trust"], "trust"),
        )


def _encode(own: Any) -> Any:
    return None if own is None else {"kind": own.kind, **asdict(own)}


def _decode(document: Any, kind: type) -> Any:
    if document is None:
        return None
    if not isinstance(document, dict) or document.get("kind") != kind.kind:
        raise UserError(f"where a {kind.kind} belongs, there is something else")

    def number(name: str) -> float:
        return read_number(document[name], name, float)

    if kind is Reciprocal:
        steps = read_number(document["steps"], "steps", int)
        return Reciprocal(low=number("low"), high=number("high"), steps=steps)
    if kind is InverseRoot:
        return InverseRoot(
            low=number("low"),
            high=number("high"),
            eps=number("eps"),
            coefficients=read_numbers(document["coefficients"], "coefficients"),
            max_error=number("max_error"),
        )
    chain = {
        "left": tuple(read_numbers(row, "left") for row in document["left"]),
        "right": tuple(read_numbers(row, "right") for row in document["right"]),
        "output": read_numbers(document["output"], "output"),
        "max_error": number("max_error"),
    }
    if kind is SteepChain:
        return SteepChain(
            function=Steep(document["function"]),
            low=number("low"),
            high=number("high"),
            squarings=read_number(document["squarings"], "squarings", int),
            **chain,
        )
    return EvenChain(activation=Activation(document["activation"]), bound=number("bound"), **chain)

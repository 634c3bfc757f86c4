"""Latency table: what each choice of an architecture costs when run securely.

The heads (or tokens) of a layer that make the same choice share its exchanges, so a choice costs
a `shared` price, however many heads (or tokens) make it, and a `per_unit` price for
each of them. The table is plain data, saved as readable JSON, and prices any
architecture of the shape that it was made for.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.codec import load, register, save
from mpcvit.errors import UserError
from mpcvit.kinds.costs import ChoiceCost, Cost
from mpcvit.kinds.table import Kind

WAN = NetworkLink(round_trip_ms=40.0, bandwidth_bytes_per_s=44e6)
"""The paper's, and the default of modelled seconds."""


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """Every choice of one layer: an attention kind per head, an MLP form per token."""

    attention: Mapping[Kind, ChoiceCost]
    mlp: Mapping[MlpForm, ChoiceCost]


def _rename_prices(document: Any) -> Any:
    """Return a document of format 1, whose prices are `once` and `each`, in format 2."""
    if isinstance(document, list):
        return [_rename_prices(item) for item in document]
    if isinstance(document, dict):
        names = {"once": "shared", "each": "per_unit"}
        return {names.get(key, key): _rename_prices(item) for key, item in document.items()}
    return document


@register("mpcvit-latency/2", "latency file", {"mpcvit-latency/1": _rename_prices})
@dataclass(frozen=True, kw_only=True)
class LatencyTable:
    """The seconds of a network, by layer and choice.

    `source` says where the counts come from and whether they were measured or
    modelled; `rest` is what no choice changes.
    """

    source: str
    network: NetworkLink
    heads: int
    tokens: int
    layers: tuple[LayerCosts, ...]
    rest: Cost
    details: Mapping[str, Any] = field(default_factory=dict)

    def require_shape(self, model: ModelConfig, origin: str = "the latency table") -> None:
        """Refuse a table that was made for a model of another shape."""
        for what, own, other in (
            ("layers", len(self.layers), model.depth),
            ("heads", self.heads, model.heads),
            ("tokens", self.tokens, model.tokens),
        ):
            if own != other:
                raise UserError(
                    f"{origin} was made for {own} {what}, but the model has {other}; "
                    "make one for this model"
                )

    def attention_cost(self, layer: int, kind: Kind) -> ChoiceCost:
        return self._choice(self.layers[layer].attention, kind, f"layers[{layer}].attention")

    def mlp_cost(self, layer: int, form: MlpForm) -> ChoiceCost:
        return self._choice(self.layers[layer].mlp, form, f"layers[{layer}].mlp")

    def price_layer(self, index: int, layer: LayerArchitecture) -> Cost:
        """Return the cost of one layer; a head mixed over rows counts in part."""
        heads: Counter[Kind] = Counter()
        for choice in layer.heads:
            rows = choice if isinstance(choice, tuple) else (choice,) * self.tokens
            heads.update(rows)
        forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,) * self.tokens
        total = Cost()
        for kind, rows in heads.items():
            total += self.attention_cost(index, kind).total(rows / self.tokens)
        for form, tokens in Counter(forms).items():
            total += self.mlp_cost(index, form).total(tokens)
        return total

    def price(self, architecture: Architecture) -> Cost:
        """Return the cost of a whole network."""
        architecture.validate(heads=self.heads, tokens=[self.tokens] * len(self.layers))
        layers = (self.price_layer(index, layer) for index, layer in enumerate(architecture.layers))
        return sum(layers, self.rest)

    def seconds(self, cost: Cost) -> float:
        """Return half a round trip per exchange, then the bytes, then the computing."""
        link = self.network.seconds(exchanges=cost.exchanges, sent_bytes=cost.sent_bytes)
        return link + cost.compute_s

    def save(self, path: Path) -> None:
        save(path, self)

    @classmethod
    def load(cls, path: Path) -> "LatencyTable":
        return load(cls, path)

    def _choice(self, choices: Mapping[Any, ChoiceCost], name: Any, where: str) -> ChoiceCost:
        if name not in choices:
            known = ", ".join(choice.value for choice in choices)
            raise UserError(
                f"the latency table has no cost of {name.value!r} in {where}; it has {known}"
            )
        return choices[name]

"""Latency table: what each choice of an architecture costs when run securely.

The heads (or tokens) of a layer that make the same choice share its exchanges, so a choice costs
a `shared` price, however many heads (or tokens) make it, and a `per_unit` price for
each of them. A table of lowered networks may also price norms, activations and fewer
tokens. It is plain data, saved as readable JSON, and prices any architecture of the
shape that it was made for.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.codec import load, register, save
from mpcvit.errors import UserError
from mpcvit.kinds.costs import ChoiceCost, Cost
from mpcvit.kinds.table import Kind

Priced = TypeVar("Priced", Cost, ChoiceCost)

WAN = NetworkLink(round_trip_ms=40.0, bandwidth_bytes_per_s=44e6)
"""The paper's, and the default of modelled seconds."""


@dataclass(frozen=True, kw_only=True)
class NormCosts:
    """The costs that layer norms add to a layer whose norms are constants that fold.

    `gain` is paid once by a layer with a layer norm, if a later norm is one too: the
    residual then has true units at both. `head` is of the norm after the last layer.
    """

    norm1: Cost = field(default_factory=Cost)
    norm2: Cost = field(default_factory=Cost)
    gain: Cost = field(default_factory=Cost)
    head: Cost = field(default_factory=Cost)


@dataclass(frozen=True, kw_only=True)
class LayerCosts:
    """Every choice of one layer: an attention kind per head, an MLP form per token.

    If norms and activations are priced too, so are the products that every choice has, and
    `fewer` has the same layer with fewer tokens.
    """

    attention: Mapping[Kind, ChoiceCost]
    mlp: Mapping[MlpForm, ChoiceCost]
    products: Cost = field(default_factory=Cost)
    norms: NormCosts | None = None
    activation: Mapping[Activation, Cost] = field(default_factory=dict)
    tokens: int = 0  # 0: those of the table
    fewer: "tuple[LayerCosts, ...]" = ()  # quoted whole, or Python 3.10 does not resolve it


def _rename_prices(document: Any) -> Any:
    """Return a document of format 1, whose prices are `once` and `each`, in format 2."""
    if isinstance(document, list):
        return [_rename_prices(item) for item in document]
    if isinstance(document, dict):
        names = {"once": "shared", "each": "per_unit"}
        return {names.get(key, key): _rename_prices(item) for key, item in document.items()}
    return document


@register(
    "mpcvit-latency/3",
    "latency file",
    {"mpcvit-latency/1": _rename_prices, "mpcvit-latency/2": lambda document: document},
)
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

    @property
    def prices_forms(self) -> bool:
        """Whether norms, activations and tokens have prices, beside attention and MLPs."""
        return all(layer.norms is not None for layer in self.layers)

    def require_choices(self, origin: str = "the latency table") -> None:
        """Refuse a table without prices of norms, activations and tokens."""
        if not self.prices_forms:
            raise UserError(
                f"{origin} prices attention alone, but search.choices has more; make one with "
                "'mpcvit profile CONFIG --out latency.json'"
            )

    def layer_costs(self, layer: int, tokens: int | None = None) -> LayerCosts:
        """Return the prices of a layer that has a number of tokens."""
        costs = self.layers[layer]
        if tokens in (None, costs.tokens or self.tokens):
            return costs
        known = {fewer.tokens: fewer for fewer in costs.fewer}
        if tokens not in known:
            counts = ", ".join(str(count) for count in (costs.tokens or self.tokens, *known))
            raise UserError(
                f"the latency table has no cost of {tokens} tokens in layers[{layer}]; "
                f"it has {counts}"
            )
        return known[tokens]

    def attention_cost(self, layer: int, kind: Kind, tokens: int | None = None) -> ChoiceCost:
        costs = self.layer_costs(layer, tokens).attention
        return self._choice(costs, kind, f"layers[{layer}].attention")

    def mlp_cost(self, layer: int, form: MlpForm, tokens: int | None = None) -> ChoiceCost:
        costs = self.layer_costs(layer, tokens).mlp
        return self._choice(costs, form, f"layers[{layer}].mlp")

    def price_layer(
        self, index: int, layer: LayerArchitecture, *, norm_follows: bool = False
    ) -> Cost:
        """Return the cost of one layer; a head mixed over rows counts in part.

        `norm_follows` says whether a later norm is a layer norm.
        """
        count = layer.form.tokens or self.tokens
        costs = self.layer_costs(index, layer.form.tokens)
        heads: Counter[Kind] = Counter()
        for choice in layer.heads:
            heads.update(choice if isinstance(choice, tuple) else (choice,) * count)
        forms = layer.mlp if isinstance(layer.mlp, tuple) else (layer.mlp,) * count
        total = costs.products
        for kind, rows in heads.items():
            total += self.attention_cost(index, kind, layer.form.tokens).total(rows / count)
        for form, tokens in Counter(forms).items():
            total += self.mlp_cost(index, form, layer.form.tokens).total(tokens)
        if costs.norms is not None:
            total += self._form_cost(index, costs, layer.form, norm_follows)
        return total

    def _form_cost(
        self, index: int, costs: LayerCosts, form: FormChoice, norm_follows: bool
    ) -> Cost:
        assert costs.norms is not None
        if None in (form.norm1, form.norm2, form.activation):
            raise UserError(
                f"layer {index} of the architecture must name its norms and its activation, "
                "because the latency table prices them"
            )
        where = f"layers[{index}].activation"
        total = self._choice(costs.activation, form.activation, where)
        for norm, cost in ((form.norm1, costs.norms.norm1), (form.norm2, costs.norms.norm2)):
            if norm is NormForm.LAYER:
                total += cost
        if norm_follows and NormForm.LAYER in (form.norm1, form.norm2):
            total += costs.norms.gain
        return total

    def price(self, architecture: Architecture) -> Cost:
        """Return the cost of a whole network; where norms are priced, it must name its own."""
        architecture.require_depth(len(self.layers))
        counts = [layer.form.tokens or self.tokens for layer in architecture.layers]
        architecture.validate(heads=self.heads, tokens=counts)
        norms = [NormForm.LAYER in (own.form.norm1, own.form.norm2) for own in architecture.layers]
        norms.append(architecture.norm is NormForm.LAYER)
        total = self.rest
        for index, layer in enumerate(architecture.layers):
            total += self.price_layer(index, layer, norm_follows=any(norms[index + 1 :]))
        last = self.layer_costs(len(counts) - 1, architecture.layers[-1].form.tokens)
        return total + last.norms.head if norms[-1] and last.norms is not None else total

    def seconds(self, cost: Cost) -> float:
        """Return half a round trip per exchange, then the bytes, then the computing."""
        link = self.network.seconds(exchanges=cost.exchanges, sent_bytes=cost.sent_bytes)
        return link + cost.compute_s

    def save(self, path: Path) -> None:
        save(path, self)

    @classmethod
    def load(cls, path: Path) -> "LatencyTable":
        return load(cls, path)

    def _choice(self, choices: Mapping[Any, Priced], name: Any, where: str) -> Priced:
        if name not in choices:
            known = ", ".join(choice.value for choice in choices)
            raise UserError(
                f"the latency table has no cost of {name.value!r} in {where}; it has {known}"
            )
        return choices[name]

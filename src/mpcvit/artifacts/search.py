"""SearchResult: how much a search found that each choice is needed, with what priced them."""

from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.choices import Choice, SearchConfig
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import SEARCH_FILE, Provenance
from mpcvit.artifacts.resolve import fewer_tokens
from mpcvit.codec import load, register, require, save
from mpcvit.errors import UserError

Alpha = tuple[tuple[tuple[float, ...], ...], ...]
"""Layers by heads by rows; one head, or one row, where all share a choice."""
Beta = tuple[tuple[float, ...], ...]
"""Layers by tokens; one token where all share a choice; empty where not searched."""
Shares = tuple[tuple[float, ...], ...]
"""Layers by what each of them chooses; empty where not searched."""


@register("mpcvit-search/2", "search", {"mpcvit-search/1": lambda document: document})
@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """A search's result: how much each part of a network needs what it might drop; 1 is most.

    `norms` are shares of layer norms, norm1 and norm2 of each layer, then of the norm before
    the head. `tokens` are shares of not merging, for each count that a layer may merge to.
    """

    model: ModelConfig
    search: SearchConfig
    alpha: Alpha
    beta: Beta
    latency: LatencyTable
    provenance: Provenance
    norms: Shares = ()
    tokens: Shares = ()

    def __post_init__(self) -> None:
        alpha = (value for heads in self.alpha for rows in heads for value in rows)
        require(all(0 <= value <= 1 for value in alpha), "alpha", "must lie in [0, 1]")
        for name in ("beta", "norms", "tokens"):
            values = (value for own in getattr(self, name) for value in own)
            require(all(0 <= value <= 1 for value in values), name, "must lie in [0, 1]")
        self.latency.require_shape(self.model)
        self._require_shares()
        if len(self.alpha) != self.model.depth or len(self.beta) not in (0, self.model.depth):
            raise UserError(
                f"alpha and beta are of {len(self.alpha)} and {len(self.beta)} layers, "
                f"but the model has {self.model.depth}"
            )

    def _require_shares(self) -> None:
        """Refuse shares of norms or tokens that are not those that the search chooses."""
        depth, choices = self.model.depth, self.search.choices
        counts = len(fewer_tokens(self.model, self.search))
        for name, choice, expected in (
            ("norms", Choice.NORM, (2,) * depth + (1,)),
            ("tokens", Choice.TOKENS, (counts,) * depth),
        ):
            found = tuple(len(own) for own in getattr(self, name))
            if found != (expected if choice in choices else ()):
                raise UserError(
                    f"the shares of {name} do not fit search.choices and the model: "
                    f"they are {found} by layer"
                )

    def save(self, path: Path) -> None:
        save(path, self)

    @classmethod
    def load(cls, path: Path) -> "SearchResult":
        """Read a search's file, or the one in its run folder."""
        path = Path(path)
        return load(cls, path / SEARCH_FILE if path.is_dir() else path)

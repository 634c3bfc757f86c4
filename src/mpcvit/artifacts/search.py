"""SearchResult: the alpha and beta that a search found, with what priced them."""

from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.config import ModelConfig, SearchConfig
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import SEARCH_FILE, Provenance
from mpcvit.codec import load, register, require, save
from mpcvit.errors import UserError

Alpha = tuple[tuple[tuple[float, ...], ...], ...]
"""Layers by heads by rows; one head, or one row, where all share a choice."""
Beta = tuple[tuple[float, ...], ...]
"""Layers by tokens; one token where all share a choice; empty where not searched."""


@register("mpcvit-search/1", "search")
@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """How much each part of a network needs what it might drop; 1 is most."""

    model: ModelConfig
    search: SearchConfig
    alpha: Alpha
    beta: Beta
    latency: LatencyTable
    provenance: Provenance

    def __post_init__(self) -> None:
        alpha = (value for heads in self.alpha for rows in heads for value in rows)
        require(all(0 <= value <= 1 for value in alpha), "alpha", "must lie in [0, 1]")
        beta = (value for tokens in self.beta for value in tokens)
        require(all(0 <= value <= 1 for value in beta), "beta", "must lie in [0, 1]")
        self.latency.require_shape(self.model)
        if len(self.alpha) != self.model.depth or len(self.beta) not in (0, self.model.depth):
            raise UserError(
                f"alpha and beta are of {len(self.alpha)} and {len(self.beta)} layers, "
                f"but the model has {self.model.depth}"
            )

    def save(self, path: Path) -> None:
        save(path, self)

    @classmethod
    def load(cls, path: Path) -> "SearchResult":
        """Read a search's file, or the one in its run folder."""
        path = Path(path)
        return load(cls, path / SEARCH_FILE if path.is_dir() else path)

"""SearchResult: the alpha and beta that a search found, with what priced them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpcvit.artifacts.config import ModelConfig, SearchConfig
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.provenance import SEARCH_FILE, Provenance
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError
from mpcvit.storage import read_json, write_text

FORMAT = "mpcvit-search/1"

Alpha = tuple[tuple[tuple[float, ...], ...], ...]
"""Layers by heads by rows; one head, or one row, where all share a choice."""
Beta = tuple[tuple[float, ...], ...]
"""Layers by tokens; one token where all share a choice; empty where not searched."""


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
        self.latency.require_shape(self.model)
        if len(self.alpha) != self.model.depth or len(self.beta) not in (0, self.model.depth):
            raise UserError(
                f"alpha and beta are of {len(self.alpha)} and {len(self.beta)} layers, "
                f"but the model has {self.model.depth}"
            )

    def save(self, path: Path) -> None:
        document = {
            "format": FORMAT,
            "model": encode(self.model),
            "search": encode(self.search),
            "alpha": self.alpha,
            "beta": self.beta,
            "latency": self.latency.to_document(),
            "provenance": self.provenance.to_dict(),
        }
        write_text(path, json.dumps(document) + "\n")

    @classmethod
    def load(cls, path: Path) -> "SearchResult":
        """Read a search's file, or the one in its run folder."""
        path = Path(path)
        if path.is_dir():
            path = path / SEARCH_FILE
        try:
            document = read_json(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError:
            raise UserError(f"there is no finished search at {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read the search {path}: {error}") from error
        found = document.get("format") if isinstance(document, dict) else None
        if found != FORMAT:
            raise UserError(f"{path} is not a search: its format is {found!r}, not {FORMAT!r}")
        try:
            return cls(
                model=decode(ModelConfig, document["model"], f"{path}: model"),
                search=decode(SearchConfig, document["search"], f"{path}: search"),
                alpha=_decode(document["alpha"], 3),
                beta=_decode(document["beta"], 2),
                latency=LatencyTable.from_document(document["latency"], f"{path}: latency"),
                provenance=Provenance.from_dict(document["provenance"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is damaged: {error!r}") from error


def _decode(value: Any, depth: int) -> Any:
    if depth == 0:
        number = float(value)
        if not 0 <= number <= 1:
            raise ValueError(f"{number} lies outside [0, 1]")
        return number
    return tuple(_decode(item, depth - 1) for item in value)

"""Which query rows of a layer are computed, by which kind, and the scale that scores want."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpcvit.artifacts.architecture import Architecture, HeadChoice
from mpcvit.artifacts.config import ModelConfig, Pooling
from mpcvit.artifacts.resolve import forms_of
from mpcvit.attention.kind_math import math_of, usual_scale
from mpcvit.kinds.table import Kind


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one head that one kind computes."""

    kind: Kind
    head: int
    tokens: tuple[int, ...]


def queries_of(config: ModelConfig, architecture: Architecture, index: int) -> int:
    """Return how many tokens of a block something later reads: of the last, those of the head."""
    if index == config.depth - 1:
        read = {Pooling.CLASS: 1, Pooling.CLASS_EXTRA: 2}
        if config.pooling in read:
            return read[config.pooling]
    return forms_of(config, architecture)[index].tokens


def split_heads(choices: Sequence[HeadChoice], queries: int) -> tuple[Part, ...]:
    """Return the first `queries` rows of all heads, those of a kind together.

    >>> from mpcvit.kinds.table import RELU_SOFTMAX as r, SCALING as s
    >>> [(part.head, part.tokens) for part in split_heads([s, (r, s, r)], queries=3)]
    [(1, (0, 2)), (0, (0, 1, 2)), (1, (1,))]
    """
    tokens_of: dict[tuple[Kind, int], list[int]] = {}
    for head, choice in enumerate(choices):
        kinds = choice if isinstance(choice, tuple) else (choice,) * queries
        for token, kind in enumerate(kinds[:queries]):
            tokens_of.setdefault((kind, head), []).append(token)
    return tuple(
        Part(kind=kind, head=head, tokens=tuple(tokens))
        for (kind, head), tokens in sorted(
            tokens_of.items(), key=lambda item: (item[0][0].name, item[0][1])
        )
    )


def kinds_of(choice: HeadChoice) -> frozenset[Kind]:
    return frozenset(choice) if isinstance(choice, tuple) else frozenset((choice,))


def folded_scale(config: ModelConfig, choice: HeadChoice, tokens: int) -> float:
    """Return the part of a kind's `score_scale` that a head's query weights take.

    A head of one kind takes all of it, and a mixed head what is common to all kinds.
    """
    kinds = kinds_of(choice)
    return math_of(*kinds).score_scale(config, tokens) if len(kinds) == 1 else usual_scale(config)

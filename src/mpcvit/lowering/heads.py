"""Which query rows of a layer are computed, by which kind, and the scale that scores want."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mpcvit.artifacts.architecture import AttentionKind, HeadChoice
from mpcvit.artifacts.config import ModelConfig, Pooling

NORMALISED = (
    AttentionKind.RELU_SOFTMAX,
    AttentionKind.QUAD2,
    AttentionKind.SOFTMAX,
    AttentionKind.LINFORMER,
)
EXPONENTIAL = (AttentionKind.SOFTMAX, AttentionKind.LINFORMER)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows of one head that one kind computes."""

    kind: AttentionKind
    head: int
    tokens: tuple[int, ...]


def queries_of(config: ModelConfig, index: int) -> int:
    """Tokens of a block that something later reads: of the last, the class token alone."""
    is_last = index == config.depth - 1
    return 1 if is_last and config.pooling is Pooling.CLASS else config.tokens


def split_heads(choices: Sequence[HeadChoice], queries: int) -> tuple[Part, ...]:
    """The first `queries` rows of all heads, those of a kind together.

    >>> s, r = AttentionKind.SCALING, AttentionKind.RELU_SOFTMAX
    >>> [(part.head, part.tokens) for part in split_heads([s, (r, s, r)], queries=3)]
    [(1, (0, 2)), (0, (0, 1, 2)), (1, (1,))]
    """
    tokens_of: dict[tuple[AttentionKind, int], list[int]] = {}
    for head, choice in enumerate(choices):
        kinds = choice if isinstance(choice, tuple) else (choice,) * queries
        for token, kind in enumerate(kinds[:queries]):
            tokens_of.setdefault((kind, head), []).append(token)
    return tuple(
        Part(kind=kind, head=head, tokens=tuple(tokens))
        for (kind, head), tokens in sorted(tokens_of.items(), key=lambda item: item[0])
    )


def kinds_of(choice: HeadChoice) -> frozenset[AttentionKind]:
    return frozenset(choice) if isinstance(choice, tuple) else frozenset((choice,))


def score_scale(config: ModelConfig, kind: AttentionKind) -> float:
    """What q k' is multiplied by: 1 / sqrt(head_dim), and the constants of a kind.

    Softmax takes half its scores, since it squares what it makes of them;
    sparsemax's ramp has slope one half; XNorm takes queries as they are.
    """
    scale = 1 / math.sqrt(config.head_dim)
    match kind:
        case AttentionKind.SCALING:
            return scale / config.tokens
        case AttentionKind.SPARSEMAX | AttentionKind.SOFTMAX | AttentionKind.LINFORMER:
            return scale / 2
        case AttentionKind.XNORM:
            return 1.0
        case _:
            return scale


def folded_scale(config: ModelConfig, choice: HeadChoice) -> float:
    """The part of `score_scale` that a head's query weights take: all, if it is of one kind."""
    kinds = kinds_of(choice)
    return (
        score_scale(config, next(iter(kinds)))
        if len(kinds) == 1
        else 1 / math.sqrt(config.head_dim)
    )

"""Routes every head, and where asked every row, to its attention kind."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxtyping import Array, Float

from mpcvit.artifacts.architecture import HeadChoice
from mpcvit.artifacts.choices import LayerMixture
from mpcvit.attention.kind_math import Context, Drop, attend, gather, merge
from mpcvit.kinds.table import Kind

HeadArray = Float[Array, "batch head token head_dim"]
ValueArray = Float[Array, "batch head token value_dim"]


@dataclass(frozen=True, kw_only=True)
class HeadGroup:
    """Heads that make the same choice, so that one call serves them all.

    `parts` says which query rows use which kind; a group of one part holds
    every row.
    """

    heads: tuple[int, ...]
    parts: tuple[tuple[Kind, tuple[int, ...]], ...]


def group_heads(choices: Sequence[HeadChoice], tokens: int) -> tuple[HeadGroup, ...]:
    """Collect heads by choice, and each choice's rows by kind.

    >>> from mpcvit.kinds.table import RELU_SOFTMAX as r, SCALING as s
    >>> [group.heads for group in group_heads([s, r, s], tokens=2)]
    [(0, 2), (1,)]
    >>> [rows for _, rows in group_heads([(r, s, r)], tokens=3)[0].parts]
    [(0, 2), (1,)]
    """
    heads_of: dict[tuple[Kind, ...], list[int]] = defaultdict(list)
    for head, choice in enumerate(choices):
        heads_of[choice if isinstance(choice, tuple) else (choice,) * tokens].append(head)
    groups = []
    for rows, heads in heads_of.items():
        rows_of: dict[Kind, list[int]] = defaultdict(list)
        for row, kind in enumerate(rows):
            rows_of[kind].append(row)
        parts = tuple((kind, tuple(indices)) for kind, indices in rows_of.items())
        groups.append(HeadGroup(heads=tuple(heads), parts=parts))
    return tuple(groups)


def route(
    choices: Sequence[HeadChoice],
    q: HeadArray,
    k: HeadArray,
    v: ValueArray,
    context: Context,
    drop: Drop | None,
) -> tuple[ValueArray, dict[str, Array]]:
    """Compute every head by its own kind, and nothing that no head uses.

    Also gives the scores that were formed, named by kind, heads and rows.
    """
    groups = group_heads(choices, q.shape[2])
    scores: dict[str, Array] = {}
    outputs = []
    for group in groups:
        own = replace(context, heads=group.heads)
        q_group, k_group, v_group = (gather(x, group.heads, axis=1) for x in (q, k, v))
        parts = []
        for kind, rows in group.parts:
            queries = gather(q_group, rows, axis=2)
            output, formed = attend(kind, queries, k_group, v_group, own, drop)
            parts.append(output)
            if formed is not None:
                scores[_label(kind, group, rows)] = formed
        outputs.append(merge(parts, [rows for _, rows in group.parts], axis=2))
    return merge(outputs, [group.heads for group in groups], axis=1), scores


def mix(
    layer: LayerMixture,
    alpha: Float[Array, "alphas rows"],
    q: HeadArray,
    k: HeadArray,
    v: ValueArray,
    context: Context,
    drop: Drop | None,
) -> tuple[ValueArray, dict[str, Array]]:
    """Compute every head by both kinds of a search.

        y = alpha kept(q, k, v) + (1 - alpha) replacement(q, k, v)

    Source: docs/numerics.md#search
    """
    outputs, scores = [], {}
    for kind in (layer.kept, layer.replacement):
        output, formed = attend(kind, q, k, v, context, drop)
        outputs.append(output)
        if formed is not None:
            scores[kind.value] = formed
    weight = alpha[None, :, :, None]
    return weight * outputs[0] + (1 - weight) * outputs[1], scores


def _label(kind: Kind, group: HeadGroup, rows: tuple[int, ...]) -> str:
    label = f"{kind.value}/heads={','.join(map(str, group.heads))}"
    return label if len(group.parts) == 1 else f"{label}/rows={','.join(map(str, rows))}"

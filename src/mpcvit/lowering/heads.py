"""Heads in an order that puts those of a kind together, and what each kind asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

from mpcvit.arch import AttentionKind, HeadChoice
from mpcvit.errors import UserError

# Neighbours share a step: the first two a ReLU, the middle two a denominator, the next a square.
_ORDER = (
    AttentionKind.RELU,
    AttentionKind.RELU_SOFTMAX,
    AttentionKind.QUAD2,
    AttentionKind.SQUARE,
    AttentionKind.SCALING,
)
_RECTIFIED = {AttentionKind.RELU, AttentionKind.RELU_SOFTMAX}
_NORMALISED = {AttentionKind.RELU_SOFTMAX, AttentionKind.QUAD2}
_SQUARED = {AttentionKind.QUAD2, AttentionKind.SQUARE}


@dataclass(frozen=True, kw_only=True)
class HeadOrder:
    """Where each head of a layer stands once they are grouped.

    `heads[i]` is the original number of the head at place i; the ranges are
    of places.
    """

    heads: tuple[int, ...]
    kinds: tuple[AttentionKind, ...]

    @property
    def rectified(self) -> range:
        return self._places(_RECTIFIED)

    @property
    def normalised(self) -> range:
        return self._places(_NORMALISED)

    @property
    def squared(self) -> range:
        return self._places(_SQUARED)

    @property
    def is_linear(self) -> bool:
        """Whether no score needs to be formed at all."""
        return set(self.kinds) == {AttentionKind.SCALING}

    def _places(self, kinds: set[AttentionKind]) -> range:
        own = [place for place, kind in enumerate(self.kinds) if kind in kinds]
        return range(own[0], own[-1] + 1) if own else range(0)


def order_heads(choices: Sequence[HeadChoice]) -> HeadOrder:
    """Group a layer's heads by kind.

    >>> s, r = AttentionKind.SCALING, AttentionKind.RELU_SOFTMAX
    >>> order_heads([s, r, s, r]).heads
    (1, 3, 0, 2)
    """
    kinds: list[AttentionKind] = []
    for choice in choices:
        if isinstance(choice, tuple):
            raise UserError("heads whose rows are of several kinds cannot be lowered yet")
        if choice not in _ORDER:
            raise UserError(f"{choice.value} attention cannot be lowered yet")
        kinds.append(choice)
    heads = sorted(range(len(kinds)), key=lambda head: _ORDER.index(kinds[head]))
    return HeadOrder(heads=tuple(heads), kinds=tuple(kinds[head] for head in heads))

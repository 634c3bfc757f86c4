"""Exchanges and bytes of single operations, to price attention kinds without a run.

The counts are SPU 0.9.5's for SEMI-2K in a 64-bit ring with 18 fraction bits,
for networks as they are written, before any lowering. Exchanges do not depend
on an operation's size, with two exceptions: SPU loops over a product's batch,
and the maximum of softmax is a tree over the keys. Bytes grow with the
elements. Local computing is not modelled.
"""

from dataclasses import dataclass, field
from typing import Protocol

_RING_BYTES = 8
_TRUNCATED_BYTES = 4  # per element, by one party


class ModelShape(Protocol):
    """The properties of a model that prices need."""

    @property
    def tokens(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    def linformer_tokens(self, tokens: int) -> int: ...
    @property
    def the_x_hidden(self) -> int: ...
    def constant(self, name: str) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Messages, their bytes, and local computing.

    An exchange is one message each way at once; `sent_bytes` are one party's.
    """

    exchanges: float = 0.0
    sent_bytes: float = 0.0
    compute_s: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            exchanges=self.exchanges + other.exchanges,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            compute_s=self.compute_s + other.compute_s,
        )

    def times(self, count: float) -> "Cost":
        return Cost(
            exchanges=count * self.exchanges,
            sent_bytes=count * self.sent_bytes,
            compute_s=count * self.compute_s,
        )


@dataclass(frozen=True, kw_only=True)
class ChoiceCost:
    """A choice's cost: once for all who make it, and for each of them."""

    shared: Cost = field(default_factory=Cost)
    per_unit: Cost = field(default_factory=Cost)

    def __add__(self, other: "ChoiceCost") -> "ChoiceCost":
        return ChoiceCost(
            shared=self.shared + other.shared, per_unit=self.per_unit + other.per_unit
        )

    def total(self, count: float) -> Cost:
        return self.shared + self.per_unit.times(count) if count > 0 else Cost()


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """An operation on each of many elements at once."""

    exchanges: int
    bytes_per_element: int

    def of(self, elements: float) -> Cost:
        return Cost(exchanges=self.exchanges, sent_bytes=self.bytes_per_element * elements)


CONSTANT = Elementwise(exchanges=1, bytes_per_element=_TRUNCATED_BYTES)  # public times secret
PRODUCT = Elementwise(exchanges=2, bytes_per_element=20)
RELU = Elementwise(exchanges=8, bytes_per_element=72)
DIVISION = Elementwise(exchanges=38, bytes_per_element=526)
RELU_SOFTMAX = Elementwise(exchanges=46, bytes_per_element=598)
RSQRT = Elementwise(exchanges=26, bytes_per_element=461)


def linear(inputs: int, outputs: int) -> ChoiceCost:
    """Price x W by rows of x: the weights are opened once under a mask, each row too."""
    return ChoiceCost(
        shared=Cost(exchanges=2, sent_bytes=_RING_BYTES * inputs * outputs),
        per_unit=Cost(sent_bytes=_RING_BYTES * inputs + _TRUNCATED_BYTES * outputs),
    )


def matmul(rows: int, inner: int, columns: int) -> Cost:
    return linear(inner, columns).total(rows)


def share_exchanges(head_by_head: Cost, *together: Cost, learnt: int = 0) -> ChoiceCost:
    """Price operations; those that take all heads together share exchanges, not bytes.

    Of their bytes, only those of `learnt` numbers are shared: matrices of all heads.
    """
    total, opened = sum(together, Cost()), float(_RING_BYTES * learnt)
    return ChoiceCost(
        shared=Cost(exchanges=total.exchanges, sent_bytes=opened),
        per_unit=head_by_head + Cost(sent_bytes=total.sent_bytes - opened),
    )


def by_scores(
    model: ModelShape,
    *entrywise: Elementwise,
    keys: int | None = None,
    beside: Cost | None = None,
    learnt: int = 0,
) -> ChoiceCost:
    """Price a kind that forms scores, and does some operations to each of them.

    `keys` are as many as tokens unless a kind has its own. `beside` is what else it does,
    by matrices of `learnt` numbers that all heads share.
    """
    n, d = model.tokens, model.head_dim
    keys = n if keys is None else keys
    return share_exchanges(
        matmul(n, d, keys) + matmul(n, keys, d),
        CONSTANT.of(n * d),
        *(operation.of(n * keys) for operation in entrywise),
        beside or Cost(),
        learnt=learnt,
    )


def linearly(model: ModelShape, *together: Cost) -> ChoiceCost:
    """Price a kind that computes q (k' v), and some operations for all heads together."""
    n, d = model.tokens, model.head_dim
    return share_exchanges(matmul(d, n, d) + matmul(n, d, d), *together)


def softmax_of(keys: int) -> Elementwise:
    """Price softmax, with 8 exchanges for each level of the tree that finds a maximum.

    Keys are halved, and the odd one of a level waits until the others are done.
    """
    levels = keys.bit_length() + keys.bit_count() - 2
    return Elementwise(exchanges=63 + 8 * levels, bytes_per_element=698)


def power_of(exponent: int) -> Elementwise:
    """Price a whole power: a square for each binary digit after the first, a product for each 1."""
    products = exponent.bit_length() + exponent.bit_count() - 2
    return Elementwise(
        exchanges=products * PRODUCT.exchanges,
        bytes_per_element=products * PRODUCT.bytes_per_element,
    )


def linformer(model: ModelShape) -> ChoiceCost:
    keys = model.linformer_tokens(model.tokens)
    compressed = matmul(keys, model.tokens, model.head_dim).times(2)
    learnt = 2 * keys * model.tokens
    return by_scores(model, softmax_of(keys), keys=keys, beside=compressed, learnt=learnt)


def xnorm(model: ModelShape) -> ChoiceCost:
    n, d = model.tokens, model.head_dim
    normalised = PRODUCT.of(n * d + d * d).times(3) + RSQRT.of(n + d)
    # the second norm waits for the product that the first one enters
    return linearly(model, normalised, Cost(exchanges=normalised.exchanges))


def the_x(model: ModelShape) -> ChoiceCost:
    n, hidden = model.tokens, model.the_x_hidden
    network = matmul(n, 1, hidden) + matmul(n, hidden, hidden) + matmul(n, hidden, 1)
    ends = RELU.of(n * hidden).times(2) + CONSTANT.of(n).times(2)
    # a cube, its ReLU, and a product with what the network makes of their sum
    scores = (CONSTANT, PRODUCT, PRODUCT, RELU, PRODUCT)
    learnt = hidden * (hidden + 2)
    return by_scores(model, *scores, beside=network + ends, learnt=learnt)

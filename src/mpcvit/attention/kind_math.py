"""Attention by any kind: the hooks that a kind's file fills in, phases, and selection of rows.

The lowered form of a kind is a generator. It yields a `Step` for what cannot be done by sums and
products with public numbers, and is sent the results. All kinds of a layer advance together:
what several ask for in one phase is one array, hence one exchange.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from mpcvit.artifacts.config import ModelConfig
from mpcvit.kinds.table import Kind

PHASES = (
    *("relu", "exponential", "row_scale", "multiply", "square", "inverse_root"),
    *("denominator", "cube"),
)
"""In the order in which they run; a kind may ask for a phase again."""


def _square(x: Array) -> Array:
    return x * x


_EXACT = {"relu": jax.nn.relu, "square": _square}


class Step(NamedTuple):
    """A request of a kind: a phase, and the operands to compute it for.

    An operand is an array; of the phase `multiply` a pair, whose second array is
    broadcast. `sites` name each operand's function in a phase that runs several.
    Another phase that is a function has the name of its site.
    """

    phase: str
    operands: Sequence[Any]
    sites: Sequence[str] = ()


Phases = Generator[Step, list[Array], Any]
Function = Callable[[Array], Array]
Invert = Callable[[Sequence[Function], Sequence[Array]], Sequence[Array]]
"""Computes several functions, each of its own array, in the exchanges of one."""


def run_phases(
    kinds: Mapping[Kind, Phases], functions: Mapping[str, Function], invert_roots: Invert
) -> dict[Kind, Any]:
    """Return what every kind returns, each phase computed once for all that ask for it.

    `functions` are those of the layer's sites. The order of the kinds decides the
    bytecode, and with it cached scripts.
    """
    waiting: dict[Kind, Step] = {}
    results: dict[Kind, Any] = {}

    def advance(kind: Kind, answers: Any) -> None:
        try:
            waiting[kind] = kinds[kind].send(answers)
        except StopIteration as end:
            waiting.pop(kind, None)
            results[kind] = end.value

    for kind in kinds:
        advance(kind, None)
    while waiting:
        phase = min((step.phase for step in waiting.values()), key=PHASES.index)
        asking = {kind: step for kind, step in waiting.items() if step.phase == phase}
        operands = [operand for step in asking.values() for operand in step.operands]
        sites = [site for step in asking.values() for site in step.sites]
        if phase == "inverse_root":
            answers = iter(invert_roots([functions[site] for site in sites], operands))
        elif phase == "multiply":
            answers = iter(multiply(operands))
        else:
            answers = iter(together({**_EXACT, **functions}[phase], operands))
        for kind, step in asking.items():
            advance(kind, [next(answers) for _ in step.operands])
    return {kind: results[kind] for kind in kinds}


def together(function: Callable[..., Array], *operands: Sequence[Array]) -> list[Array]:
    """Return an elementwise function of several arrays, in the exchanges of one.

    Images stay apart, for those who watch what the function is given.
    """
    if len(operands[0]) == 1:
        return [function(*(arrays[0] for arrays in operands))]
    rows = [[array.reshape(array.shape[0], -1) for array in arrays] for arrays in operands]
    flat = [jnp.concatenate(arrays, axis=1) for arrays in rows]
    ends = np.cumsum([array.shape[1] for array in rows[0]])[:-1]
    pieces = jnp.split(function(*flat), ends, axis=1)
    return [piece.reshape(array.shape) for piece, array in zip(pieces, operands[0], strict=True)]


def multiply(pairs: Sequence[tuple[Array, Array]]) -> list[Array]:
    """Return the product of each pair, in the exchanges of one; the second is broadcast."""
    seconds = [jnp.broadcast_to(second, first.shape) for first, second in pairs]
    return together(jnp.multiply, [first for first, _ in pairs], seconds)


def gather(x: Array, indices: Sequence[int], *, axis: int) -> Array:
    """Take some entries of an axis.

    >>> gather(jnp.arange(5), (1, 2, 3), axis=0).tolist()
    [1, 2, 3]
    >>> gather(jnp.arange(5), (4, 0), axis=0).tolist()
    [4, 0]
    """
    first, count = indices[0], len(indices)
    if tuple(indices) != tuple(range(first, first + count)):
        return jnp.take(x, np.array(indices), axis=axis)
    return x if count == x.shape[axis] else lax.slice_in_dim(x, first, first + count, axis=axis)


def merge(parts: Sequence[Array], indices: Sequence[Sequence[int]], *, axis: int) -> Array:
    """Put gathered parts back where `indices` says each came from.

    >>> merge([jnp.array([10, 30]), jnp.array([20])], [(0, 2), (1,)], axis=0).tolist()
    [10, 20, 30]
    """
    if len(parts) == 1:
        return parts[0]
    order = np.argsort([index for part in indices for index in part])
    return gather(jnp.concatenate(parts, axis=axis), order.tolist(), axis=axis)


Queries = Float[Array, "*lead query head_dim"]
Keys = Float[Array, "*lead key head_dim"]
Values = Float[Array, "*lead key value_dim"]
Outputs = Float[Array, "*lead query value_dim"]
Scores = Float[Array, "*lead query key"]
Weights = Float[Array, "*lead query key"]
Drop = Callable[[Array], Array]
"""Dropout of attention weights, or None where nothing is dropped."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """The things that a kind may read beside its arrays: the model, and what the kind has learnt.

    In a lowered network, `learned` is what `KindMath.fold` made of it.
    """

    config: ModelConfig
    learned: Mapping[str, Any] = field(default_factory=dict)
    heads: tuple[int, ...] | None = None

    def of_heads(self, name: str) -> Array:
        """Return the rows of a learnt array for the heads that are computed."""
        array = self.learned[name]
        return array if self.heads is None else array[np.array(self.heads)]


def usual_scale(config: ModelConfig, tokens: int = 0) -> float:
    """Return 1 / sqrt(head_dim) of queries and keys, by which scores are multiplied."""
    return 1 / math.sqrt(config.qk_dim)


@dataclass(frozen=True, kw_only=True)
class KindMath:
    """A kind's functions, as it is trained and as it is lowered.

    As it is trained:
    weights:         attention weights from scores; None if it forms no scores
    linear:          outputs from q, k and v in an order that forms no scores. A kind with
                     weights too takes it where no weights are dropped.
    keys_and_values: what it makes of keys and values first
    learn:           its own parameters by name, made in the module that is given, for a
                     number of tokens

    As it is lowered:
    lowered:         the phases from scores to weights and a factor per row, or None;
                     None in its place if it forms no scores
    lowered_linear:  the phases that change queries and the blocks k' v before their product
    lowered_keys_and_values: as `keys_and_values`, for arrays [batch, token, width]
    score_scale:     the factor of q k' in a layer with a number of tokens. A head of one
                     kind has it in its weights.
    fold:            its learnt parameters as the lowered network reads them, by tokens too
    gain:            what outputs of a head are multiplied by. Only for a kind that does
                     not see the scale of v: another kind's rows in that head do.
    """

    weights: Callable[[Array, Context], Array] | None = None
    linear: Callable[[Array, Array, Array, Context], Array] | None = None
    keys_and_values: Callable[[Array, Array, Context], tuple[Array, Array]] | None = None
    learn: Callable[[nn.Module, ModelConfig, Any, int], dict[str, Any]] | None = None
    lowered: Callable[[Array, Context], Phases] | None = None
    lowered_linear: Callable[[Array, Array, Context], Phases] | None = None
    lowered_keys_and_values: Callable[[Array, Array, Context], tuple[Array, Array]] | None = None
    score_scale: Callable[[ModelConfig, int], float] = usual_scale
    fold: Callable[[ModelConfig, Any, int], dict[str, Any]] | None = None
    gain: Callable[[Any, int], float] | None = None


@cache
def math_of(kind: Kind) -> KindMath:
    """Return what a kind computes, from the file with its name."""
    return import_module(f"mpcvit.attention.{kind.name}").MATH


def attention_scores(q: Queries, k: Keys) -> Scores:
    """Compare every query with every key.

        s[i, j] = q[i] . k[j] / sqrt(head_dim)

    Secure cost: one product of matrices; the constant folds into the weights.
    """
    return (q / math.sqrt(q.shape[-1])) @ jnp.swapaxes(k, -1, -2)


def attend(
    kind: Kind, q: Queries, k: Keys, v: Values, context: Context, drop: Drop | None = None
) -> tuple[Outputs, Float[Array, "..."] | None]:
    """Run one kind; return its output, and its scores where it forms any."""
    own = math_of(kind)
    if own.linear is not None and (drop is None or own.weights is None):
        return own.linear(q, k, v, context), None
    assert own.weights is not None
    if own.keys_and_values is not None:
        k, v = own.keys_and_values(k, v, context)
    scores = attention_scores(q, k)
    weights = own.weights(scores, context)
    return (weights if drop is None else drop(weights)) @ v, scores

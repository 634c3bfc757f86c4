"""Runs the lowered kinds of a layer together, so that they share exchanges.

The lowered form of a kind is a generator. It yields a `Step` for what cannot be
done by sums and products with public numbers, and is sent the results. All kinds of a layer
advance together: what several ask for in one phase is one array, hence one
exchange.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

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

"""Rewrites of a traced stage that change no value: constants as inputs, and SPU's own square."""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from mpcvit.errors import UserError

_ARITHMETIC = ("add", "sub", "mul")  # what SPU computes alike with constants and with inputs
# what SPU computes by exp
_OF_EXP = ("exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "erf", "erf_inv", "pow")
_MADE = re.compile(r"^ *(%\w+) = pphlo\.(.*)$", re.MULTILINE)
_EXP = re.compile(r"pphlo\.exponential (%\w+) ")
_MADE_BY_EXP = re.compile(r"pphlo\.(exponential_minus_one|logistic|power|tanh)\b")
_SECRET_AND_PUBLIC = re.compile(r"add (%\w+), (%\w+) : \(tensor<[^,]*!pphlo\.secret<f32>>, tensor")
_MINUS_TWO = "constant dense<-2.000000e+00>"


@dataclass(frozen=True, kw_only=True)
class Constant:
    """An array of float32 that all parties know."""

    shape: tuple[int, ...]
    values: tuple[float, ...]

    @classmethod
    def of(cls, value: Any) -> "Constant":
        array = np.asarray(value, np.float32)
        return cls(shape=array.shape, values=tuple(array.ravel().tolist()))

    @property
    def array(self) -> np.ndarray:
        return np.array(self.values, np.float32).reshape(self.shape)

    @property
    def name(self) -> str:
        """A name of its content."""
        content = f"{self.shape}:".encode() + self.array.tobytes()
        return f"constant.{hashlib.sha256(content).hexdigest()[:32]}"


def rewrite(
    traced: Any, *, constants_apart: bool, squares: bool
) -> tuple[Callable[..., list[Any]], tuple[Constant, ...]]:
    """Return a function of a traced program's inputs and then its constants, and the constants.

    Blocks that differ in their constants alone are then one program. Constants are arrays,
    and numbers that are added to or multiplied with an array. Numbers inside of called
    functions, such as the zero of a ReLU, stay where they are.
    """
    program = traced.jaxpr
    if squares:
        _require_no_exp(program)
    secrets = _secrets(program)
    apart = [constants_apart and _is_real(own) for own in traced.consts]
    constants = [own for own, is_apart in zip(traced.consts, apart, strict=True) if is_apart]
    if constants_apart:
        constants += [place.val for equation in program.eqns for place in _numbers(equation)]

    def function(*inputs: Any) -> list[Any]:
        given = len(program.invars)
        rest = iter(inputs[given:])
        known: dict[Any, Any] = dict(zip(program.invars, inputs[:given], strict=True))
        for place, own, is_apart in zip(program.constvars, traced.consts, apart, strict=True):
            known[place] = next(rest) if is_apart else own

        def read(place: Any) -> Any:
            return place.val if isinstance(place, core.Literal) else known[place]

        for equation in program.eqns:
            moved = {id(own) for own in _numbers(equation)} if constants_apart else set()
            arguments = [next(rest) if id(own) in moved else read(own) for own in equation.invars]
            own_square = squares and _is_square(equation) and equation.invars[0] in secrets
            results = [square(arguments[0])] if own_square else _compute(equation, arguments)
            known.update(zip(equation.outvars, results, strict=True))
        return [read(place) for place in program.outvars]

    return function, tuple(map(Constant.of, constants))


def shapes_of(constants: Sequence[Constant]) -> list[Any]:
    return [jax.ShapeDtypeStruct(constant.shape, jnp.float32) for constant in constants]


def square(x: Any) -> Any:
    """Return x^2 in a program whose exp is (1 + y / 2)^2, by SPU's kernel for squares.

    It opens one number for each element. SPU's product of x and x opens two.
    """
    return jnp.exp((x + x) - 2.0)


def only_squares(code: str) -> bool:
    """Return whether every exp of compiled code is that of `square`.

    A compiler that takes exp for what its name says may have made exp(a + b) of two squares
    exp(a) exp(b), or exp(-a) of one over a square.
    """
    if _MADE_BY_EXP.search(code):
        return False
    made = dict(_MADE.findall(code))
    for operand in _EXP.findall(code):
        added = _SECRET_AND_PUBLIC.match(made.get(operand, ""))
        if added is None or not made.get(added[2], "").startswith(_MINUS_TWO):
            return False
    return True


def _compute(equation: Any, arguments: Sequence[Any]) -> Sequence[Any]:
    functions, settings = equation.primitive.get_bind_params(equation.params)
    results = equation.primitive.bind(*functions, *arguments, **settings)
    return results if equation.primitive.multiple_results else [results]


def _is_square(equation: Any) -> bool:
    """Return whether an operation multiplies a real array with itself."""
    if equation.outvars[0].aval.dtype.kind != "f":
        return False
    if equation.primitive.name == "integer_pow":
        return equation.params["y"] == 2
    left, *right = equation.invars
    return equation.primitive.name == "mul" and left is right[0]


def _require_no_exp(program: Any) -> None:
    for equation in _all_equations(program):
        if equation.primitive.name in _OF_EXP:
            raise UserError(
                f"a network that computes {equation.primitive.name} cannot have squares = true "
                "in its profile; 'mpcvit lower' makes programs that can"
            )


def _secrets(program: Any) -> set[Any]:
    """Return what depends on inputs. Of anything else SPU would compute a real exp."""
    secrets = set(program.invars)
    for equation in program.eqns:
        places = [place for place in equation.invars if not isinstance(place, core.Literal)]
        if not secrets.isdisjoint(places):
            secrets.update(equation.outvars)
    return secrets


def _all_equations(program: Any) -> Iterator[Any]:
    """Yield the operations of a program, and of all that it calls."""
    for equation in program.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from _all_equations(inner)


def _numbers(equation: Any) -> list[Any]:
    """Return the operands of an operation that are numbers to set apart."""
    if equation.primitive.name not in _ARITHMETIC:
        return []
    literals = (place for place in equation.invars if isinstance(place, core.Literal))
    return [place for place in literals if _is_real(place.val)]


def _is_real(value: Any) -> bool:
    return np.asarray(value).dtype.kind == "f"

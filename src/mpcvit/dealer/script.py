"""Script: which correlated randomness one inference of a program asks for, in order.

A step says what is made and how large it is. It names no place in the parties'
random streams: places follow from the order (`ledger.py`). One thing alone is
drawn again: the mask of a kernel, as the right operand of a product. A step
names that kernel by its number. So a script cannot express that another range
is used twice, skipped or taken out of turn.
"""

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.generator import blocks_of
from mpcvit.dealer.limits import (
    MOST_ANSWER_BYTES,
    MOST_DRAWN_BYTES,
    MOST_INFLATED_BYTES,
    MOST_MULTIPLY_ADDS,
    MOST_STEP_BYTES,
    MOST_STEPS,
)
from mpcvit.dealer.ring import MOST_INNER, WIDTHS

MOST_KERNELS = 10_000
RIGHT = 1  # which operand of a product a kernel is
_MOST_ROW = 100  # characters


class Kind(str, Enum):
    """A kind of correlated randomness, as SPU's client names it; last operands are adjusted."""

    MUL = "Mul"
    MUL_PRIVATE = "MulPriv"
    SQUARE = "Square"
    DOT = "Dot"
    AND = "And"
    TRUNCATE = "Trunc"
    TRUNCATE_PROBABLY = "TruncPr"
    RANDOM_BIT = "RandBit"
    EQUAL_ZERO = "Eqz"

    @property
    def operands(self) -> int:
        """How many random arrays each party draws."""
        return _OPERANDS[self]

    @property
    def shifts(self) -> bool:
        return self in (Kind.TRUNCATE, Kind.TRUNCATE_PROBABLY)


_OPERANDS = {
    Kind.MUL: 3,
    Kind.MUL_PRIVATE: 2,
    Kind.SQUARE: 2,
    Kind.DOT: 3,
    Kind.AND: 3,
    Kind.TRUNCATE: 2,
    Kind.TRUNCATE_PROBABLY: 3,
    Kind.RANDOM_BIT: 1,
    Kind.EQUAL_ZERO: 2,
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One piece of correlated randomness."""

    kind: Kind
    width: int  # bytes of a ring element
    shape: tuple[int, ...]  # elements; of DOT: rows, columns and what is summed over
    shift: int = 0  # of the kinds that truncate
    kernel: int | None = None  # whose mask a MUL draws first, or a DOT draws again on its right

    def __post_init__(self) -> None:
        plain = [self.width, self.shift, *self.shape]
        plain += [] if self.kernel is None else [self.kernel]
        if any(type(number) is not int for number in plain):
            raise DealerError("a step's numbers must be whole")
        if self.width not in WIDTHS or (self.kind is Kind.AND and self.width != 16):
            raise DealerError(f"there is no {self.kind.value} of {self.width} bytes")
        if len(self.shape) != (3 if self.kind is Kind.DOT else 1) or min(self.shape) < 1:
            raise DealerError(f"{self.kind.value} cannot have the shape {self.shape}")
        if max(self.operand_bytes) > MOST_STEP_BYTES:
            raise DealerError(f"a {self.kind.value} of {max(self.operand_bytes)} bytes is too big")
        if self.kind is Kind.DOT and self.shape[2] > MOST_INNER:
            raise DealerError(f"a product cannot sum over {self.shape[2]} terms")
        if not (1 <= self.shift < 8 * self.width - 1 if self.kind.shifts else self.shift == 0):
            raise DealerError(f"{self.kind.value} cannot shift by {self.shift} bits")
        if self.kernel is not None and not (self.opens_kernel or self.kind is Kind.DOT):
            raise DealerError(f"a {self.kind.value} has no kernel whose mask is reused")
        if not 0 <= (self.kernel or 0) < MOST_KERNELS:
            raise DealerError(f"there is no kernel number {self.kernel}")

    @property
    def opens_kernel(self) -> bool:
        """Whether this is the first use of a kernel, whose mask is its first operand."""
        return self.kernel is not None and self.kind is Kind.MUL

    @property
    def replays_kernel(self) -> bool:
        """Whether the right operand is a kernel's mask."""
        return self.kernel is not None and self.kind is Kind.DOT

    @property
    def operand_bytes(self) -> tuple[int, ...]:
        """The length of each random array."""
        if self.kind is Kind.DOT:
            m, n, k = self.shape
            return tuple(count * self.width for count in (m * k, k * n, m * n))
        return (self.shape[0] * self.width,) * self.kind.operands

    @property
    def answer_bytes(self) -> tuple[int, ...]:
        """The length of each buffer that the adjusting party gets."""
        buffers = 2 if self.kind is Kind.TRUNCATE_PROBABLY else 1
        return self.operand_bytes[-1:] * buffers

    @property
    def multiply_adds(self) -> int:
        """The multiplications of a matrix product. Other kinds take one for each element drawn."""
        return math.prod(self.shape) if self.kind is Kind.DOT else 0

    @property
    def blocks(self) -> int:
        """How far it moves the parties' counters: by all operands that are drawn afresh."""
        lengths = list(self.operand_bytes)
        if self.replays_kernel:
            del lengths[RIGHT]
        return sum(map(blocks_of, lengths))

    def counts(self, start: int, replayed: int | None = None) -> tuple[int, ...]:
        """Return where each operand begins: the first at `start`, and a kernel's elsewhere.

        >>> Step(kind=Kind.DOT, width=8, shape=(2, 3, 5)).counts(100)
        (100, 105, 113)
        >>> Step(kind=Kind.DOT, width=8, shape=(2, 3, 5), kernel=0).counts(100, replayed=7)
        (100, 7, 105)
        """
        found = []
        for place, length in enumerate(self.operand_bytes):
            if replayed is not None and place == RIGHT:
                found.append(replayed)
            else:
                found.append(start)
                start += blocks_of(length)
        return tuple(found)

    def to_row(self) -> list[Any]:
        row = [self.kind.value, self.width, list(self.shape), self.shift]
        return row if self.kernel is None else [*row, self.kernel]

    @classmethod
    def from_row(cls, row: Any) -> "Step":
        try:
            kind, width, shape, shift, *kernel = row
            (number,) = kernel or (None,)
            return cls(kind=Kind(kind), width=width, shape=tuple(shape), shift=shift, kernel=number)
        except (TypeError, ValueError) as error:
            raise DealerError("a step of the script cannot be understood") from error


@dataclass(frozen=True)
class Script:
    """The steps of one inference, or of the set-up before the first."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        for what, amount, most in (
            ("has {:,} steps", len(self.steps), MOST_STEPS),
            ("draws {:,} bytes", self.drawn_bytes, MOST_DRAWN_BYTES),
            ("asks for {:,} bytes", self.answer_bytes, MOST_ANSWER_BYTES),
            ("takes {:,} multiply-adds", self.multiply_adds, MOST_MULTIPLY_ADDS),
        ):
            if amount > most:
                raise DealerError(f"a script {what.format(amount)}; a dealer allows {most:,}")

    @cached_property
    def answer_bytes(self) -> int:
        return sum(sum(step.answer_bytes) for step in self.steps)

    @cached_property
    def drawn_bytes(self) -> int:
        return sum(sum(step.operand_bytes) for step in self.steps)

    @cached_property
    def multiply_adds(self) -> int:
        return sum(step.multiply_adds for step in self.steps)

    @cached_property
    def blocks(self) -> int:
        return sum(step.blocks for step in self.steps)

    @cached_property
    def is_set_up(self) -> bool:
        """Whether kernels are used here for the first time."""
        return any(step.opens_kernel for step in self.steps)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self._text()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the script as it is stored and sent.

        >>> script = Script((Step(kind=Kind.AND, width=16, shape=(3,)),))
        >>> Script.from_bytes(script.to_bytes()) == script
        True
        """
        return zlib.compress(self._text(), 9)

    @classmethod
    def from_bytes(cls, content: bytes) -> "Script":
        """Decode what a party sent, and believe nothing of it."""
        return cls.from_text(inflate(content, MOST_INFLATED_BYTES))

    @classmethod
    def from_text(cls, text: bytes) -> "Script":
        """Decode steps. Each must be in its one written form."""
        if count_steps(text) > MOST_STEPS:
            raise DealerError(f"a script has more than {MOST_STEPS:,} steps")
        if text == b"[]":
            return cls(())
        if not (text.startswith(b"[[") and text.endswith(b"]]")):
            raise DealerError("the script cannot be understood")
        rows = text[2:-2].split(_BETWEEN_STEPS)
        known = {row: _step_of(row) for row in set(rows)}
        return cls(tuple(known[row] for row in rows))

    def encoded(self) -> dict[str, str]:
        """Return the script's plain form.

        >>> script = Script((Step(kind=Kind.AND, width=16, shape=(3,)),))
        >>> Script.decoded(script.encoded(), "a program") == script
        True
        """
        return {"digest": self.digest, "steps": base64.b64encode(self.to_bytes()).decode()}

    @classmethod
    def decoded(cls, document: Any, where: str) -> "Script":
        """Decode a script of a program, and hold it to its digest."""
        try:
            digest, content = document["digest"], base64.b64decode(document["steps"], validate=True)
        except (TypeError, KeyError, ValueError) as error:
            raise DealerError(f"{where}: the script cannot be understood") from error
        script = cls.from_bytes(content)
        if script.digest != digest:
            raise DealerError(f"{where}: the script does not match its digest")
        return script

    def _text(self) -> bytes:
        return json.dumps([step.to_row() for step in self.steps], separators=(",", ":")).encode()


_BETWEEN_STEPS = b"],["  # and nowhere else in a script's one written form


def inflate(content: bytes, most_bytes: int) -> bytes:
    """Return a script's text. No more than the limit is ever unpacked."""
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(content, most_bytes + 1)
    except zlib.error:
        raise DealerError("the script cannot be understood") from None
    if len(text) > most_bytes:
        raise DealerError(f"scripts of more than {MOST_INFLATED_BYTES:,} bytes are too long")
    if not unpacker.eof or unpacker.unused_data:
        raise DealerError("the script cannot be understood")
    return text


def count_steps(text: bytes) -> int:
    """Return the steps of a script's text, before anything is made of it.

    >>> count_steps(b'[["And",16,[3],0],["And",16,[3],0]]')
    2
    """
    return text.count(_BETWEEN_STEPS) + 1


def _step_of(row: bytes) -> Step:
    try:
        step = Step.from_row(json.loads(b"[%s]" % row)) if len(row) <= _MOST_ROW else None
    except (ValueError, RecursionError):
        step = None
    if step is None:
        raise DealerError("a step of the script cannot be understood")
    if json.dumps(step.to_row(), separators=(",", ":")).encode() != b"[%s]" % row:
        raise DealerError("the script is not in its one written form")
    return step


Scripts = Mapping[str, Script]
"""Scripts by name. `secure/dealing/rehearsal.py` makes the names of what a script depends on."""

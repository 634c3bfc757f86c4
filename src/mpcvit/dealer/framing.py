"""What SPU's client says to a dealer, and what it wants to hear.

A request is a POST to .../AdjustXxx with JSON: for each operand the block it
begins at, its length, and the parties' seeds, encrypted to the dealer; fields
that are zero are left out. The answer holds, for each buffer, a zero byte, the
length as eight bytes, and the buffer; or a one, a length and a sentence.
"""

import base64
import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.script import Kind, Step

_METHOD = "/spu.mpc.semi2k.beaver.ttp_server.BeaverService/Adjust"
_HEAD = struct.Struct("<Bq")
_FAILED = 1
_AND_WIDTH = 16  # SPU leaves it out, as bits need no ring
_FIELDS = {
    *("prg_inputs", "field_size", "element_type", "bits"),
    *("M", "N", "K", "transpose_inputs"),
}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request of SPU's client."""

    step: Step
    counts: tuple[int, ...]  # where each operand begins
    seeds: tuple[bytes, ...]  # encrypted, by party


def read_call(path: str, body: bytes) -> Call:
    """Decode a request, and refuse all that does not fit a step exactly."""
    try:
        document = json.loads(body)
        if not path.startswith(_METHOD) or not set(document) <= _FIELDS:
            raise ValueError
        kind = Kind(path.removeprefix(_METHOD))
        operands = document["prg_inputs"]
        (seeds,) = {tuple(operand["encrypted_seeds"]) for operand in operands}
        step = _step(kind, document, [_whole(operand, "buffer_len") for operand in operands])
        return Call(
            step=step,
            counts=tuple(_whole(operand, "prg_count") for operand in operands),
            seeds=tuple(base64.b64decode(seed, validate=True) for seed in seeds),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DealerError("SPU's request cannot be understood; is it another version?") from error


def _step(kind: Kind, document: dict[str, Any], lengths: list[int]) -> Step:
    if document.get("element_type", "RING") not in ("RING", "UNSPECIFIED", 0, 1):
        raise DealerError("no program of ours computes in prime fields")
    if any(document.get("transpose_inputs", ())):
        raise DealerError("no program of ours transposes a mask")
    width = _AND_WIDTH if kind is Kind.AND else _whole(document, "field_size")
    if kind is Kind.DOT:
        shape = tuple(_whole(document, name) for name in ("M", "N", "K"))
    else:
        shape = (lengths[0] // width,)
    step = Step(kind=kind, width=width, shape=shape, shift=_whole(document, "bits"))
    if list(step.operand_bytes) != lengths:
        raise DealerError(f"a {kind.value} cannot have operands of {lengths} bytes")
    return step


def _whole(document: dict[str, Any], name: str) -> int:
    value = int(document.get(name, 0))  # JSON of protocol buffers may quote long numbers
    if value < 0:
        raise ValueError
    return value


def frame(buffers: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the pieces of an answer.

    >>> b"".join(frame([b"ab"])).hex()
    '0002000000000000006162'
    """
    pieces: list[bytes | memoryview] = []
    for buffer in buffers:
        pieces += [_HEAD.pack(0, len(buffer)), buffer]
    return pieces


def frame_error(sentence: str) -> list[bytes | memoryview]:
    text = sentence.encode()
    return [_HEAD.pack(_FAILED, len(text)), text]

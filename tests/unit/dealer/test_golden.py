"""What SPU 0.9.5 itself drew, encrypted and sent; tests/golden/dealer/make.py made it."""

import base64
import importlib.metadata
import json
import struct

import numpy as np
import pytest

from mpcvit.dealer import SPU_VERSION
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.framing import frame, frame_error, read_call
from mpcvit.dealer.generator import draw
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.script import Kind
from tests.unit.dealer.conftest import GOLDEN

VECTORS = json.loads((GOLDEN / "spu.json").read_text())


def test_they_are_of_the_spu_that_is_installed():
    assert VECTORS["spu"] == SPU_VERSION == importlib.metadata.version("spu")


def test_the_generator():
    """AES-128 of 0, 1, ... as little-endian numbers: the first is a vector of NIST's."""
    assert draw(bytes(16), 0, 16).hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"
    assert draw(bytes(16), 1, 5) == draw(bytes(16), 0, 21)[16:]
    assert draw(bytes(16), (1 << 64) - 1, 16) != draw(bytes(16), 0, 16)


def test_seeds_that_spu_encrypted(key):
    for sealed, seed in VECTORS["seeds"].items():
        assert key.decrypt(base64.b64decode(sealed)).hex() == seed


def test_what_holds_no_seed_decrypts_to_one_that_tells_nothing(key):
    found = [key.decrypt(content) for content in (bytes(384), b"\1" * 384, b"", b"x" * 999)]
    assert all(len(seed) == 16 for seed in found)
    assert len(set(found)) == len(found)
    assert key.decrypt(bytes(384)) == found[0]


def test_numbers_that_spu_drew(key):
    """SPU multiplied zeros with zeros for adjustments, and got c - a b."""
    golden = VECTORS["product"]
    call = read_call(golden["path"], golden["request"].encode())
    seeds = tuple(map(key.decrypt, call.seeds))
    correction = np.frombuffer(adjust(call.step, seeds, call.counts), "<i8")
    assert (-correction).tolist() == golden["result"]


def test_requests_as_spu_sends_them():
    kinds = set()
    for path, body in VECTORS["requests"].items():
        call = read_call(path, body.encode())
        kinds.add(call.step.kind)
        assert call.counts == call.step.counts(call.counts[0])
        assert len(call.seeds) == 2
    assert kinds >= {Kind.MUL, Kind.DOT, Kind.AND, Kind.MUL_PRIVATE, Kind.EQUAL_ZERO}


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("field_size", 3),
        ("element_type", "GFMP"),
        ("M", 99),
        ("transpose_inputs", [False, True, False]),
        ("surprise", 1),
        ("prg_inputs", []),
        ("prg_inputs", None),
    ],
)
def test_requests_that_do_not_fit(change, value):
    path = next(path for path in VECTORS["requests"] if path.endswith("AdjustDot"))
    document = {**json.loads(VECTORS["requests"][path]), change: value}
    with pytest.raises(DealerError):
        read_call(path, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("path", "body"), [("/AdjustMul", b"{}"), ("/x", b"[]"), ("", b"[" * 9999), ("/", b"\xff")]
)
def test_requests_that_are_none(path, body):
    with pytest.raises(DealerError, match="cannot be understood"):
        read_call(path, body)


def test_the_framing():
    assert b"".join(frame([b"abc", b"d"])) == (
        b"\0" + struct.pack("<q", 3) + b"abc" + b"\0" + struct.pack("<q", 1) + b"d"
    )
    assert b"".join(frame_error("no")) == b"\1" + struct.pack("<q", 2) + b"no"

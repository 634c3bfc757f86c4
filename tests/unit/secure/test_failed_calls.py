"""An answer that says that a call failed is honest, and nothing may hide in it."""

import pytest

from mpcvit.secure.service.frames import FrameChecker, FrameError

SENTENCE = b"[E2003]Server is stopping"
RESPONSE = b"\x08\xd3\x0f\x12" + bytes([len(SENTENCE)]) + SENTENCE  # code 2003, and a sentence
META = b"\x12" + bytes([len(RESPONSE)]) + RESPONSE + b"\x18\x00\x20\x05"  # not compressed, call 5


@pytest.fixture
def checker():
    return FrameChecker(peer_rank=0, session="0" * 32)


def test_a_failed_call_has_no_status(checker):
    """SPU answers so while it ends."""
    checker.check_answer(META, len(META))


def test_nothing_follows_a_failed_call(checker):
    with pytest.raises(FrameError, match="more than an error"):
        checker.check_answer(META + b"\x0a\x00", len(META))


def test_a_call_that_succeeded_has_a_status(checker):
    succeeded = b"\x12\x02\x08\x00\x18\x00\x20\x05"
    with pytest.raises(FrameError, match="lacks a field"):
        checker.check_answer(succeeded, len(succeeded))
    checker.check_answer(succeeded + b"\x0a\x02\x08\x00", len(succeeded))

"""The frame checker: what an honest SPU sends passes, and nothing else does."""

import contextlib
import struct
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpcvit.secure.service.frames import HEAD, FrameChecker, FrameError, FrameLimits, split_head
from tests.frames import (
    CHUNK,
    SERVICE,
    SESSION,
    answer,
    bytes_field,
    call,
    chunks,
    frame,
    key_of,
    number_field,
    push,
    receipt,
    request_meta,
    varint,
)

SMALL = FrameLimits(message_bytes=8 * CHUNK, unread_bytes=10 * CHUNK, unread_messages=5)
META = request_meta()


def checker(limits=None, rank=0):
    return FrameChecker(peer_rank=rank, session=SESSION, limits=limits)


def request(check, payload, meta=META):
    check.check_request(meta + payload, len(meta))


def sent(check, payload, meta=META):
    check.note_sent(meta + payload, len(meta))


def refuses(payload, meta=META, check=None, match="a frame"):
    with pytest.raises(FrameError, match=match) as error:
        request(check or checker(SMALL), payload, meta)
    assert "\n" not in str(error.value)


def beginning(number, length):
    """Return the first chunk of a message."""
    return push(key_of(number), bytes(CHUNK), chunk=(length, 0))


numbers = st.integers(0, 2**64 - 1)


@given(
    key=st.sampled_from(
        [key_of(1), key_of(77, way="1->0"), b"connect_0\x01\x020", b"ACK\x01\x02", b"FIN\x01\x02"]
    ),
    value=st.binary(max_size=200),
    correlation=numbers,
)
def test_messages_and_signs_of_a_link_pass(key, value, correlation):
    request(checker(), push(key, value), request_meta(correlation=correlation))


@given(rank=st.sampled_from([0, 1, 2]), size=st.integers(1, 3 * CHUNK + 1))
@example(rank=1, size=CHUNK)
@example(rank=1, size=2 * CHUNK)
def test_a_message_in_chunks_passes_in_any_order_and_again(rank, size):
    check = checker(SMALL, rank)
    pieces = chunks(key_of(3), bytes(size), rank)
    for piece in [*reversed(pieces), *pieces]:  # SPU sends again what was not answered in time
        request(check, piece)


@given(code=st.integers(0, 2**31), correlation=numbers, text=st.binary(max_size=100))
def test_answers_pass(code, correlation, text):
    status = number_field(1, code) + bytes_field(2, text)
    for payload in (bytes_field(1, b""), bytes_field(1, status)):
        meta, payload = answer(correlation=correlation, payload=payload)
        checker().check_answer(meta + payload, len(meta))


def test_an_answer_that_reports_a_failed_call_has_no_payload():
    meta, payload = answer(code=2004, payload=b"")
    checker().check_answer(meta + payload, len(meta))
    meta, payload = answer(code=0, payload=b"")
    with pytest.raises(FrameError, match="lacks a field"):
        checker().check_answer(meta + payload, len(meta))


def attempt(work, *arguments):
    """Run a check that may pass or refuse, but must not fail in another way, or for long."""
    started = time.process_time()
    with contextlib.suppress(FrameError):
        work(*arguments)
    assert time.process_time() - started < 1


def everything(body, meta_bytes):
    check = checker(SMALL)
    for work in (check.check_request, check.check_answer, check.note_sent):
        attempt(work, body, meta_bytes)


@given(st.binary(min_size=HEAD.size, max_size=HEAD.size))
def test_any_head_gives_sizes_within_bounds_or_is_refused(head):
    try:
        body, meta = split_head(head)
    except FrameError:
        return
    assert meta <= body < CHUNK + 1000


@given(body=st.integers(0, 2**32 - 1), meta=st.integers(0, 2**32 - 1))
@example(body=2**32 - 1, meta=10)
@example(body=10, meta=11)
@example(body=CHUNK + 2000, meta=100)
def test_a_frame_of_another_size_is_refused_by_its_head(body, meta):
    head = struct.pack(">4sII", b"PRPC", body, meta)
    if meta <= min(body, 256) and body - meta <= CHUNK + 320:
        assert split_head(head) == (body, meta)
        return
    with pytest.raises(FrameError, match=f"a frame of {body} bytes"):
        split_head(head)


def test_another_protocol_is_refused_by_its_head():
    with pytest.raises(FrameError, match="no frame of SPU"):
        split_head(b"HULU" + frame(META, b"")[4 : HEAD.size])


@given(body=st.binary(max_size=400), meta=st.integers(0, 400))
def test_random_bytes_raise_nothing_but_a_frame_error(body, meta):
    everything(body, min(meta, len(body)))


@given(
    payload=st.sampled_from(
        [push(key_of(1), b"value"), *chunks(key_of(2), bytes(40)), push(b"ACK\x01\x02", b"1")]
    ),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 10**6),
)
def test_changed_bytes_raise_nothing_but_a_frame_error(payload, edits, cut):
    body = bytearray(META + payload)
    for place, value in edits:
        body[place % len(body)] = value
    everything(bytes(body), len(META))
    everything(bytes(body[: cut % len(body)]), min(len(META), cut % len(body)))


@given(st.integers(0, len(push(key_of(1), b"value")) - 1))
def test_a_payload_that_ends_early_is_refused(cut):
    whole = push(key_of(1), b"value")
    if cut != len(whole) - len(bytes_field(3, b"value")):  # a message without a value is whole
        refuses(whole[:cut])


@given(rank=st.integers(1, 2**64 - 1))
@example(rank=2**32)  # zero, for whom 32 bits are enough
def test_another_rank_is_refused(rank):
    refuses(push(key_of(1), b"v", rank), match="of another rank")


@pytest.mark.parametrize(
    "key",
    [
        key_of(1, session="f" * 32),
        key_of(1, session=SESSION[1:]),
        b"",
        b"connect_1\x01\x020",
        b"connect_0",
        b"ACK",
        b"ACK\x01\x02-1",
        b"another\x01\x021",
        key_of(1) + b"\n",
        key_of(1) + b"x",
        b"\n" + key_of(1),
        key_of(1).replace(b"P2P", b"P\x002P"),
        key_of(10**21),
        SESSION.encode() + b"-" * 300 + b"\x01\x021",
    ],
)
def test_another_key_is_refused(key):
    refuses(push(key, b"v"), match="of another kind")


def test_a_message_of_the_session_has_a_number():
    refuses(push(SESSION.encode() + b"-0:x\x01\x02", b"v"), match="without a number")


@pytest.mark.parametrize(
    ("meta", "match"),
    [
        (request_meta(service=b"brpc.flags"), "another service"),
        (request_meta(service=SERVICE + b"x"), "another service"),
        (request_meta(method=b"Pull"), "another service"),
        (request_meta(compressed=1), "compressed"),
        (request_meta(compressed=2**32), "compressed"),
        (number_field(3, 0) + number_field(4, 1), "lacks a field"),
        (bytes_field(1, b""), "lacks a field"),
        (META + number_field(4, 1), "unknown field"),  # a second time
        (META + number_field(5, 1), "unknown field"),  # attached bytes
        (META + bytes_field(7, b"x"), "unknown field"),
        (number_field(1, 5), "unknown field"),  # of another type
        (bytes_field(1, call() + call()), "unknown field"),
        (varint(4 << 3 | 1) + bytes(8) + META, "unknown field"),
        (varint(0) + META, "unknown field"),
        (META[:-1], "ends too early"),
        (answer()[0], "unknown field"),
    ],
)
def test_another_call_is_refused(meta, match):
    refuses(push(key_of(1), b"v"), meta, match=match)


@pytest.mark.parametrize(
    "payload",
    [
        push(key_of(1), b"v") + bytes_field(3, b"w"),  # twice: SPU would take the last
        push(key_of(1), b"v") + bytes_field(2, key_of(2)),
        push(key_of(1), b"v") + number_field(1, 0) + number_field(1, 1),
        push(key_of(1), b"v") + number_field(6, 1),
        push(key_of(1), b"v") + varint(3 << 3 | 3),  # a group
        push(key_of(1), b"v") + varint((2**29 + 3) << 3 | 2) + b"\x01w",  # 3, for 29 bits
        number_field(2, 1) + push(key_of(1), b"v"),
        push(key_of(1), b"v", chunk=(1, 0)) + bytes_field(5, number_field(1, 9)),
    ],
)
def test_repeated_and_unknown_fields_are_refused(payload):
    refuses(payload, match="unknown field")


@pytest.mark.parametrize(
    "written",
    [
        b"\x81\x80\x00",  # one, with zeros before it
        b"\x80\x00",
        b"\xff" * 9 + b"\x02",  # beyond 64 bits
        b"\x80" * 10 + b"\x01",
        b"\xff" * 20,
        b"\x80" * 9 + b"\x00",
    ],
)
def test_numbers_that_are_written_at_length_are_refused(written):
    """Decoders read such numbers in different ways."""
    refuses(varint(1 << 3) + written + push(key_of(1), b"v"), match="number|early")
    refuses(written + push(key_of(1), b"v"), match="number|early")
    refuses(push(key_of(1), b"v"), META + varint(4 << 3) + written, match="number|early|unknown")


@pytest.mark.parametrize(
    ("length", "offset", "size"),
    [
        (10, 0, 11),  # more than the whole
        (10, 1, 10),
        (10, 10, 1),
        (10, 11, 0),
        (10, 0, 0),
        (0, 0, 1),
        (2 * CHUNK, 1, CHUNK),  # not where SPU cuts
        (2 * CHUNK, CHUNK - 1, CHUNK),
        (2 * CHUNK, 0, CHUNK - 1),
        (2 * CHUNK, CHUNK, 5),
        (2 * CHUNK, 2 * CHUNK, CHUNK),
        (2**64 - 1, 0, CHUNK),  # negative, for whom the sign is in 64 bits
        (2**63, 0, CHUNK),
        (CHUNK, 2**64 - CHUNK, CHUNK),  # zero, if the sum wraps
        (10, 2**64 - CHUNK, 10),
        (2**63 + CHUNK, 2**63, CHUNK),
        (9 * CHUNK, 0, CHUNK),  # above the limit of a message
    ],
)
def test_chunks_outside_of_their_message_are_refused(length, offset, size):
    refuses(push(key_of(1), bytes(size), chunk=(length, offset)))


@given(length=numbers, offset=numbers, size=st.integers(0, 50))
def test_a_chunk_passes_only_within_its_message(length, offset, size):
    try:
        request(checker(SMALL), push(key_of(1), bytes(size), chunk=(length, offset)))
    except FrameError:
        return
    assert size > 0
    assert offset + size <= length <= SMALL.message_bytes


def test_half_a_chunk_is_refused():
    whole = push(key_of(1), b"v")
    refuses(whole + number_field(4, 1), match="half a chunk")
    refuses(whole + bytes_field(5, number_field(1, 1)), match="half a chunk")
    refuses(whole + number_field(4, 0) + bytes_field(5, number_field(1, 1)), match="half a chunk")
    refuses(whole + number_field(4, 2) + bytes_field(5, number_field(1, 1)), match="of another")
    refuses(whole + number_field(4, 1) + bytes_field(5, b""), match="outside of its message")


def test_signs_of_a_link_are_short_and_whole():
    refuses(push(b"ACK\x01\x02", bytes(257)), match="too many bytes")
    refuses(push(b"connect_0\x01\x020", b"v", chunk=(1, 0)), match="too many bytes")
    refuses(push(key_of(1), bytes(CHUNK + 1)), match="too many bytes")


def test_a_message_has_one_length_and_one_key():
    check = checker(SMALL)
    request(check, push(key_of(1), bytes(CHUNK), chunk=(3 * CHUNK, 0)))
    refuses(push(key_of(1), bytes(CHUNK), chunk=(4 * CHUNK, CHUNK)), check=check, match="length")
    refuses(push(key_of(1), b"v"), check=check, match="another length")
    refuses(push(key_of(1, way="1->0"), bytes(CHUNK), chunk=(3 * CHUNK, 0)), check=check)
    refuses(push(key_of(1).replace(b"\x021", b"\x0201"), b"v"), check=check)


def test_unread_messages_and_bytes_are_limited_and_receipts_free_them():
    check = checker(SMALL)
    for number in range(1, 6):
        request(check, push(key_of(number), b""))
    refuses(push(key_of(6), b""), check=check, match="one message too many")

    check = checker(SMALL)
    for number in range(1, 20):  # read as they come
        request(check, beginning(number, 6 * CHUNK))
        sent(check, receipt(number))
        sent(check, receipt(number))  # SPU may say so again
    request(check, beginning(20, 6 * CHUNK))
    request(check, beginning(21, 4 * CHUNK))
    refuses(push(key_of(22), b"v"), check=check, match="one message too many")


def test_a_receipt_of_what_never_came_frees_nothing():
    check = checker(SMALL)
    for number in range(100):
        sent(check, receipt(number))
    request(check, beginning(1, 6 * CHUNK))
    refuses(beginning(2, 6 * CHUNK), check=check, match="one message too many")


@pytest.mark.parametrize("number", [b"", b"x", b"-1", b"1_0", b" 1", "²".encode(), b"9" * 5000])
def test_a_receipt_without_a_number_is_refused(number):
    with pytest.raises(FrameError):
        sent(checker(), push(b"ACK\x01\x02", number, rank=1))


@pytest.mark.parametrize(
    ("meta", "payload"),
    [
        (META, bytes_field(1, b"")),
        (answer()[0] + bytes_field(2, b""), bytes_field(1, b"")),
        (bytes_field(2, b"") + number_field(3, 1), bytes_field(1, b"")),
        (answer()[0], bytes_field(1, b"") + bytes_field(1, b"")),
        (answer()[0], bytes_field(2, b"")),
        (answer()[0], bytes_field(1, bytes_field(3, b"x"))),
        (answer()[0], bytes_field(1, bytes_field(2, bytes(5000)))),
        (answer()[0], push(key_of(1), b"v")),
        (b"", b""),
    ],
)
def test_other_answers_are_refused(meta, payload):
    with pytest.raises(FrameError):
        checker().check_answer(meta + payload, len(meta))

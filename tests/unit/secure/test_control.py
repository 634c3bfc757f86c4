"""Messages between client and server: they arrive as they were, and nothing else is believed."""

import asyncio
import contextlib
import json
import socket
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.profile import load_profile
from mpcvit.hosts.door import Stream
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.service.control import ControlConnection
from mpcvit.secure.service.messages import (
    FORMAT,
    Answer,
    Hello,
    Join,
    Verdict,
    Way,
    Word,
    decode,
    encode,
    read_first,
    read_message,
)

PATIENCE_S = 60.0  # of tests, on a busy machine
SESSION = "0123456789abcdef" * 2
HELLO = Hello(terms=agreement_of(load_profile("semi2k")), images=5, batch_size=2)
WELCOME = Answer(
    verdict=Verdict.WELCOME,
    session=SESSION,
    address="model.example.org:9001",
    engine=choose_engine(load_profile("semi2k")),
)
DEEP = json.loads("[" * 900 + "]" * 900)


def read(work, content):
    """Run a reader over bytes after which the line ends."""

    async def run():
        reader = asyncio.StreamReader()
        reader.feed_data(content)
        reader.feed_eof()
        return await work(reader)

    return asyncio.run(run())


def framed(document):
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return struct.pack(">I", len(content)) + content


def plain(message):
    return json.loads(encode(message)[4:])


@pytest.mark.parametrize("message", [HELLO, Join(session=SESSION, way=Way.BACK)])
def test_first_messages_arrive_as_they_were(message):
    assert read(read_first, encode(message)) == message


reasons = st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=80)


@given(place=st.integers(0, 1 << 20), retry_s=st.integers(0, 3600), reason=reasons)
def test_answers_arrive_as_they_were(place, retry_s, reason):
    for verdict in Verdict:
        answer = Answer(
            verdict=verdict,
            place=place,
            retry_s=float(retry_s),
            reason=reason if reason.isprintable() else "",
            session=SESSION,
        )
        assert read(read_message, encode(answer)) == answer
    assert read(read_message, encode(WELCOME)) == WELCOME


@pytest.mark.parametrize("word", [Word(), Word(is_end=True), Word(is_end=True, reason="no")])
def test_words_arrive_as_they_were(word):
    assert read(read_message, encode(word)) == word


def test_a_sentence_is_cut_to_a_length_that_the_peer_takes():
    for message in (
        Word(is_end=True, reason="é" * 100_000),
        Answer(verdict=Verdict.REFUSED, reason="é" * 100_000),
    ):
        assert read(read_message, encode(message)).reason == "é" * 400


def test_a_peer_cannot_write_control_characters_into_a_log():
    document = {**plain(Word(is_end=True)), "reason": "fine\n\x1b[2Jdone \ud800"}
    reason = decode(document).reason
    assert reason.isprintable()
    assert reason.encode()


@pytest.mark.parametrize(
    "content",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 100,
        struct.pack(">I", (1 << 14) + 1) + b" " * ((1 << 14) + 1),
        framed(b""),
        framed(b"no json"),
        framed(b"\xff\xfe"),
        framed(b"[" * 10_000),
        framed(b'{"a":' * 3_000),
        framed([]),
        framed(None),
        framed(b"9" * 10_000),
        framed({"format": "another"}),
        framed({"format": [FORMAT]}),
        framed({"format": FORMAT}),
        framed({"format": FORMAT, "is": []}),
        framed({"format": FORMAT, "is": "word"}),
    ],
)
def test_what_is_no_message_is_refused(content):
    with pytest.raises(PartyError):
        read(read_first, content)


def test_a_message_that_ends_early_is_the_end_of_the_line():
    for cut in (0, 3, 4, 40):
        with pytest.raises(asyncio.IncompleteReadError):
            read(read_first, encode(HELLO)[:cut])


class Announced:
    """A reader that refuses to be asked for a long message."""

    async def readexactly(self, count):
        assert count == 4, "a length was believed"
        return struct.pack(">I", 1 << 31)


def test_a_length_is_not_believed():
    with pytest.raises(PartyError):
        asyncio.run(read_message(Announced()))


@pytest.mark.parametrize("name", ["images", "batch_size"])
@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None, 1 << 31, 10**400, [], {}])
def test_numbers_of_a_hello_are_whole_and_in_range(name, value):
    with pytest.raises(PartyError, match="cannot be understood"):
        read(read_first, framed({**plain(HELLO), name: value}))


@pytest.mark.parametrize(
    "terms",
    [None, [], "x", 5, {"a": DEEP}, {"a": {"b": 1}}, {"a": [1]}, {str(n): n for n in range(99)}],
)
def test_terms_are_few_and_flat(terms):
    with pytest.raises(PartyError, match="cannot be understood"):
        read(read_first, framed({**plain(HELLO), "terms": terms}))


@pytest.mark.parametrize(
    "changes",
    [
        {"session": "x"},
        {"session": SESSION + "\n"},
        {"session": SESSION.upper()},
        {"session": None},
        {"session": [SESSION]},
        {"way": "sideways"},
        {"way": None},
        {"way": []},
        {"way": {}},
    ],
)
def test_a_join_names_a_session_and_a_way(changes):
    join = plain(Join(session=SESSION, way=Way.FORTH))
    with pytest.raises(PartyError, match="cannot be understood"):
        read(read_first, framed({**join, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": "?"},
        {"verdict": None},
        {"verdict": []},
        {"session": ""},
        {"session": "../../etc"},
        {"engine": 5},
        {"engine": {"x": 1}},
        {"engine": {**plain(WELCOME)["engine"], "ring_bits": 1.5}},
        {"engine": {**plain(WELCOME)["engine"], "ring_bits": DEEP}},
        {"engine": {**plain(WELCOME)["engine"], "truncation": []}},
        {"address": 5},
        {"address": DEEP},
        {"address": "nowhere"},
        {"address": "host:0"},
        {"address": "host:²"},
        {"address": "host:" + "9" * 5000},
        {"address": "ho\0st:80"},
        {"address": "ho st:80"},
        {"address": "h\udc80st:80"},
        {"place": -1},
        {"place": 1.5},
        {"place": True},
        {"retry_s": -1},
        {"retry_s": 1e9},
        {"retry_s": float("nan")},
        {"retry_s": float("inf")},
        {"retry_s": 10**400},
        {"retry_s": "5"},
        {"reason": 5},
        {"reason": DEEP},
        {"reason": None},
    ],
)
def test_an_answer_is_not_believed(changes):
    with pytest.raises(PartyError):
        decode({**plain(WELCOME), **changes})


def test_a_word_is_a_word():
    word = plain(Word())
    for document in ({}, {**word, "reason": DEEP}, {**word, "is_end": 1}, {**word, "more": 1}):
        with pytest.raises(PartyError):
            decode(document)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=4,
)
messages = st.sampled_from(
    [plain(HELLO), plain(WELCOME), plain(Word()), plain(Join(session=SESSION, way=Way.FORTH))]
)


@given(message=messages, data=st.data())
@example(message=plain(WELCOME), data=None)
def test_changed_messages_raise_nothing_but_a_party_error(message, data):
    if data is not None:
        key = data.draw(st.sampled_from([*message, "another"]))
        message = {**message, key: data.draw(values)}
    with contextlib.suppress(PartyError):
        decode(message)
    with contextlib.suppress(PartyError):
        read(read_first, framed(message))


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_but_a_party_error(content):
    for whole in (content, framed(content)):
        with contextlib.suppress(PartyError, asyncio.IncompleteReadError):
            read(read_first, whole)


async def _streams():
    """Return the two ends of a connection."""
    ours, theirs = socket.socketpair()
    return [
        Stream(reader=reader, writer=writer)
        for reader, writer in [await asyncio.open_connection(sock=end) for end in (ours, theirs)]
    ]


def test_the_end_with_the_reason_waits_until_the_peer_has_read_it(monkeypatch):
    """A line that is closed at once may lose the last word, as one behind a router did."""
    monkeypatch.setattr("mpcvit.secure.service.control._GRACE_S", 3600.0)

    async def main():
        streams = await _streams()
        one, other = [ControlConnection(end, "lost") for end in streams]
        one.start()
        ending = asyncio.ensure_future(one.end("the model's party died"))
        await asyncio.sleep(0.3)
        assert not ending.done()
        other.start()
        await asyncio.wait_for(ending, PATIENCE_S)
        with pytest.raises(PartyError, match="the model's party died"):
            other.check()
        await other.stop()
        for stream in streams:
            stream.abort()
        await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_peer_that_never_reads_does_not_hold_the_end(monkeypatch):
    monkeypatch.setattr("mpcvit.secure.service.control._GRACE_S", 0.2)

    async def main():
        near, far = await _streams()
        one = ControlConnection(near, "lost")
        one.start()
        await asyncio.wait_for(one.end("the model's party died"), PATIENCE_S)
        for stream in (near, far):
            stream.abort()
        await asyncio.sleep(0.01)

    asyncio.run(main())

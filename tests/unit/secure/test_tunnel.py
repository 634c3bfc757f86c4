"""Two tunnels joined by plain sockets: whole frames pass unchanged, malformed ones not at all."""

import asyncio
import contextlib
import socket

import pytest

from mpcvit.hosts.door import Stream
from mpcvit.secure.parties.sockets import dial, listen, unix_address
from mpcvit.secure.service.frames import FrameChecker, FrameLimits
from mpcvit.secure.service.tunnel import Tunnel
from tests.frames import (
    CHUNK,
    SESSION,
    answer,
    chunks,
    frame,
    key_of,
    push,
    receipt,
    request_meta,
)

META = request_meta()
MESSAGE = frame(META, push(key_of(1), b"a message"))
ANSWER = frame(*answer())
PATIENCE_S = 60  # of tests, on a busy machine


class Spu:
    """Stands for SPU: listens on a socket, and dials another one."""

    def __init__(self, folder):
        folder.mkdir(mode=0o700)
        self.own = unix_address(folder / "own.sock")
        self.peer = unix_address(folder / "peer.sock")
        self._taken = asyncio.Queue()
        self.streams = []

    async def open(self):
        self._server = await asyncio.start_unix_server(self._take, sock=listen(self.own))

    def _take(self, reader, writer):
        self._taken.put_nowait(self._keep(reader, writer))

    def _keep(self, reader, writer):
        self.streams.append(Stream(reader=reader, writer=writer))
        return self.streams[-1]

    async def taken(self):
        return await asyncio.wait_for(self._taken.get(), PATIENCE_S)

    async def dial(self):
        return self._keep(*await asyncio.open_unix_connection(sock=dial(self.peer)))

    def close(self):
        self._server.close()
        for stream in self.streams:
            stream.abort()


class Pair:
    """A near host of rank 0 that dials, and a far one of rank 1 that takes."""

    def __init__(self, folder, limits=None):
        self.near, self.far = Spu(folder / "near"), Spu(folder / "far")
        self.near_failures, self.far_failures, self.lines = [], [], []
        self.reached = 0
        self._near = Tunnel(
            self.near.own,
            self.near.peer,
            FrameChecker(peer_rank=1, session=SESSION, limits=limits),
            reach=self.reach,
            fail=self.near_failures.append,
        )
        self._far = Tunnel(
            self.far.own,
            self.far.peer,
            FrameChecker(peer_rank=0, session=SESSION, limits=limits),
            reach=self.reach_back,
            fail=self.far_failures.append,
        )

    async def reach(self):
        return await self._line(self._far)

    async def reach_back(self):
        return await self._line(self._near)

    async def _line(self, other):
        self.reached += 1
        one, two = [
            Stream(reader=reader, writer=writer)
            for end in socket.socketpair()
            for reader, writer in [await asyncio.open_connection(sock=end)]
        ]
        self.lines.append(two)
        other.take_later(two)
        return one

    async def __aenter__(self):
        for spu in (self.near, self.far):
            await spu.open()
        for tunnel in (self._near, self._far):
            await tunnel.open()
        return self

    async def __aexit__(self, *_):
        for tunnel in (self._near, self._far):
            await tunnel.close()
        for spu in (self.near, self.far):
            spu.close()
        await asyncio.sleep(0.02)  # closed connections leave the loop


def run(work):
    """Run a test to its end; nothing that it started may fail unseen."""

    async def watched():
        complaints = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: complaints.append(found))
        await asyncio.wait_for(work(), 30)
        await asyncio.sleep(0.02)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others
        assert not complaints

    asyncio.run(watched())


async def receive(stream, count):
    return await asyncio.wait_for(stream.reader.readexactly(count), PATIENCE_S)


async def is_closed(stream):
    """Return whether a stream ends without a further byte."""
    with contextlib.suppress(ConnectionError):
        return await asyncio.wait_for(stream.reader.read(), PATIENCE_S) == b""
    return True


def test_genuine_frames_arrive_unchanged_both_ways(tmp_path):
    content = bytes(range(256)) * (5 * CHUNK // 512)  # two chunks and a half
    forth = [MESSAGE, *(frame(META, piece) for piece in chunks(key_of(2), content))]

    async def work():
        async with Pair(tmp_path) as pair:
            dialled = await pair.near.dial()
            dialled.writer.write(b"".join(forth))
            taken = await pair.far.taken()
            assert await receive(taken, sum(map(len, forth))) == b"".join(forth)
            taken.writer.write(ANSWER * 4)
            assert await receive(dialled, 4 * len(ANSWER)) == ANSWER * 4

            back = await pair.far.dial()  # the other way round, at the same time
            message = frame(META, push(key_of(3, way="1->0"), b"back", rank=1))
            back.writer.write(message)
            assert await receive(await pair.near.taken(), len(message)) == message
            assert not pair.near_failures + pair.far_failures

    run(work)


def test_pieces_of_a_frame_wait_for_the_rest(tmp_path):
    async def work():
        async with Pair(tmp_path) as pair:
            dialled = await pair.near.dial()
            for place in range(len(MESSAGE)):
                dialled.writer.write(MESSAGE[place : place + 1])
                await asyncio.sleep(0)
            assert await receive(await pair.far.taken(), len(MESSAGE)) == MESSAGE

    run(work)


@pytest.mark.parametrize(
    "bad",
    [
        frame(META, push(key_of(1), b"v", rank=2)),
        frame(META, push(key_of(1, session="f" * 32), b"v")),
        frame(META, push(key_of(1), b"v", chunk=(2 * CHUNK, 5))),
        frame(META, b"\xff" * 100),
    ],
)
def test_a_malformed_request_ends_the_connection_and_nothing_of_it_arrives(tmp_path, bad):
    async def work():
        async with Pair(tmp_path) as pair:
            line = await pair.reach()  # a peer with no tunnel of its own before it
            line.writer.write(MESSAGE + bad + MESSAGE)
            taken = await pair.far.taken()
            assert await receive(taken, len(MESSAGE)) == MESSAGE
            assert await is_closed(taken)
            assert await is_closed(line)
            assert len(pair.far_failures) == 1
            assert pair.far_failures[0].startswith("the peer sent")
            line.abort()

    run(work)


@pytest.mark.parametrize("bad", [b"GET / HTTP/1.1\r\n\r\n", b"PRPC" + b"\xff" * 8])
def test_what_is_no_frame_is_refused_by_its_head_alone(tmp_path, bad):
    async def work():
        async with Pair(tmp_path) as pair:
            line = await pair.reach()
            line.writer.write(bad)
            assert await is_closed(await pair.far.taken())
            assert await is_closed(line)
            assert len(pair.far_failures) == 1
            line.abort()

    run(work)


def test_a_malformed_answer_ends_the_connection(tmp_path):
    """The far SPU stands for a peer that answers what it likes."""

    async def work():
        async with Pair(tmp_path) as pair:
            dialled = await pair.near.dial()
            dialled.writer.write(MESSAGE)
            taken = await pair.far.taken()
            await receive(taken, len(MESSAGE))
            taken.writer.write(ANSWER + MESSAGE)
            assert await receive(dialled, len(ANSWER)) == ANSWER
            assert await is_closed(dialled)
            assert await is_closed(taken)
            assert len(pair.near_failures) == 1
            assert not pair.far_failures

    run(work)


def test_receipts_of_the_own_spu_make_room(tmp_path):
    limits = FrameLimits(unread_messages=3)

    async def work():
        async with Pair(tmp_path, limits) as pair:
            dialled, back = await pair.near.dial(), await pair.far.dial()
            taken, receipts = await pair.far.taken(), await pair.near.taken()
            for number in range(20):
                message = frame(META, push(key_of(number), b"v"))
                dialled.writer.write(message)
                assert await receive(taken, len(message)) == message
                read = frame(META, receipt(number))
                back.writer.write(read)
                assert await receive(receipts, len(read)) == read
            for number in range(20, 24):  # one too many that nobody reads
                dialled.writer.write(frame(META, push(key_of(number), b"v")))
            assert await is_closed(dialled)
            assert pair.far_failures == ["the peer sent a frame of one message too many"]

    run(work)


def test_a_broken_line_closes_both_ends_and_the_next_dial_works(tmp_path):
    async def work():
        async with Pair(tmp_path) as pair:
            for attempt in range(1, 4):
                dialled = await pair.near.dial()
                dialled.writer.write(MESSAGE)
                taken = await pair.far.taken()
                assert await receive(taken, len(MESSAGE)) == MESSAGE
                pair.lines[-1].abort()
                assert await is_closed(dialled)
                assert await is_closed(taken)
                assert pair.reached == attempt
            assert not pair.near_failures + pair.far_failures

    run(work)


@pytest.mark.parametrize("end", ["dialled", "taken"])
def test_when_one_spu_hangs_up_the_other_one_notices(tmp_path, end):
    async def work():
        async with Pair(tmp_path) as pair:
            dialled = await pair.near.dial()
            taken = await pair.far.taken()
            ends = {"dialled": dialled, "taken": taken}
            ends.pop(end).writer.close()
            assert await is_closed(*ends.values())

    run(work)


@pytest.mark.parametrize("error", [ConnectionRefusedError, asyncio.TimeoutError, EOFError])
def test_an_unreachable_peer_is_an_end_for_spu_which_dials_again(tmp_path, error):
    async def work():
        async with Pair(tmp_path) as pair:
            reach = pair._near._reach

            async def unreachable():
                raise error

            pair._near._reach = unreachable
            assert await is_closed(await pair.near.dial())
            pair._near._reach = reach
            dialled = await pair.near.dial()
            dialled.writer.write(MESSAGE)
            assert await receive(await pair.far.taken(), len(MESSAGE)) == MESSAGE

    run(work)


def test_closing_ends_every_connection_also_one_that_is_not_through(tmp_path):
    async def work():
        async with Pair(tmp_path) as pair:
            dialled = await pair.near.dial()
            await pair.far.taken()
            pair.far._server.close()  # and from now on nobody listens there
            (tmp_path / "far" / "own.sock").unlink()
            waiting = await pair.reach()
            await asyncio.sleep(0.05)
            await pair._far.close()
            assert await is_closed(waiting)
            assert await is_closed(dialled)
            waiting.abort()

    run(work)


def test_an_spu_that_takes_no_connections_does_not_hold_up_the_others(tmp_path):
    async def work():
        async with Pair(tmp_path) as pair:
            pair.far._server.close()
            (tmp_path / "far" / "own.sock").unlink()
            with listen(pair.far.own) as full:
                full.listen(0)
                waiting = [await pair.reach() for _ in range(5)]
                back = await pair.far.dial()  # the other way goes on meanwhile
                message = frame(META, push(key_of(3, way="1->0"), b"back", rank=1))
                back.writer.write(message)
                assert await receive(await pair.near.taken(), len(message)) == message
                await pair._far.close()
                for line in waiting:
                    assert await is_closed(line)
                    line.abort()

    run(work)


def test_a_session_may_end_while_a_connection_is_ending(tmp_path):
    """However far the end of the connection has got, nothing is said and nothing is left."""

    async def work():
        for turns in range(12):
            folder = tmp_path / str(turns)
            folder.mkdir()
            async with Pair(folder) as pair:
                dialled = await pair.near.dial()
                taken = await pair.far.taken()
                pair.lines[-1].abort()
                for _ in range(turns):
                    await asyncio.sleep(0)
                await pair._near.close()
                assert await is_closed(dialled)
                assert await is_closed(taken)

    run(work)

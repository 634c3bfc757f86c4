"""One end of a control connection during a session."""

import asyncio
import contextlib
import time

from mpcvit.hosts.door import Stream, end_tasks
from mpcvit.secure.errors import PartyError
from mpcvit.secure.service.messages import (
    ALIVE_EVERY_S,
    SILENCE_S,
    Answer,
    Hello,
    Word,
    encode,
    read_message,
)

_GRACE_S = 3.0  # the own party may know more precisely why the peer is gone
_FAREWELL_S = 10.0  # for the peer's last word, which shows that it has read this end's


class ControlConnection:
    """Says that this end is alive, and hears whether the other one is.

    `peer` is the subject of sentences about a peer that is gone without a word. Other threads
    may call `check`.
    """

    def __init__(self, stream: Stream, peer: str) -> None:
        self._stream, self._peer = stream, peer
        self._lost, self._gone_at = "", 0.0
        self._peer_ended = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.farewell: Word | None = None  # the peer's last word

    def start(self) -> None:
        self._tasks = [
            asyncio.ensure_future(self._listen()),
            asyncio.ensure_future(self.stay_alive()),
        ]

    def send(self, message: Hello | Answer | Word) -> None:
        with contextlib.suppress(OSError):
            self._stream.writer.write(encode(message))

    @property
    def is_lost(self) -> bool:
        """Whether the peer is gone without a last word; it will not come back."""
        return bool(self._lost) and self.farewell is None

    @property
    def peer_is_done(self) -> bool:
        """Whether the peer said that the session ended well."""
        return self.farewell is not None and not self.farewell.reason

    async def wait_until_over(self) -> None:
        await self._peer_ended.wait()

    def check(self) -> None:
        """Raise PartyError if the peer failed, or is gone for longer than a moment."""
        if self.farewell is not None and self.farewell.reason:
            raise PartyError(self.farewell.reason)
        if self.is_lost and time.monotonic() - self._gone_at > _GRACE_S:
            raise PartyError(self._lost)

    async def end(self, reason: str = "") -> None:
        """Say the last word, and wait for the peer's: a line that is closed at once may lose it."""
        self.send(Word(is_end=True, reason=reason))
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            patience_s = _GRACE_S if reason else _FAREWELL_S
            await asyncio.wait_for(self._peer_ended.wait(), patience_s)
        await self.stop()

    async def stop(self) -> None:
        await end_tasks(self._tasks)

    async def _listen(self) -> None:
        try:
            while self.farewell is None:
                message = await asyncio.wait_for(read_message(self._stream.reader), SILENCE_S)
                if not isinstance(message, Word):
                    raise PartyError("received a message out of turn")
                if message.is_end:
                    self.farewell = message
                    if message.reason:  # the peer waits until it was read
                        self.send(message)
        # before the others, as it is an OSError too
        except asyncio.TimeoutError:
            self._lose(f"nothing was heard of {self._peer} for {SILENCE_S:g} s")
        except (OSError, EOFError):
            self._lose(f"{self._peer} broke off without a word")
        except PartyError:
            self._lose(f"{self._peer} sent what cannot be understood")
        finally:
            self._peer_ended.set()

    def _lose(self, sentence: str) -> None:
        self._gone_at, self._lost = time.monotonic(), sentence

    async def stay_alive(self) -> None:
        """Say so every few seconds, until cancelled."""
        while True:
            await asyncio.sleep(ALIVE_EVERY_S)
            self.send(Word())

"""Where a party's SPU finds its dealer: a port on its own machine.

SPU's client cannot show a token, trusts every answer and waits for ever
for the rest of an answer that breaks off. So each party's SPU speaks with a
gateway in its own process, which hangs up on other processes. Both parties'
SPUs are configured to adjust; the gateway of the party that does not answers with
zeros, which change nothing. Thus both see every request of their own SPU, and
hold it to what was agreed on. SPU asks before it opens anything that the masks
hide, so that a refusal is in time.
"""

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.framing import Call, frame, frame_error, read_call
from mpcvit.dealer.http import head_of, read_local_request
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.ledger import Ledger
from mpcvit.dealer.party.neighbours import is_of_this_process
from mpcvit.dealer.party.supply import Supply
from mpcvit.dealer.script import Script, Step

_MOST_BYTES = 1 << 16
Buffers = Sequence[bytes | memoryview]


class Gateway:
    """Answers SPU's requests with what a function makes of them, and whole."""

    def __init__(self, answer: Callable[[Call], Buffers]) -> None:
        self._answer = answer
        self._turn = threading.Lock()
        self.failure: DealerError | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._lines: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Hang up on everyone, and answer nobody any more."""
        _wake(self._listener)
        self._accepting.join()
        self._listener.close()
        for line in list(self._lines):
            _wake(line)

    def __enter__(self) -> "Gateway":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, peer = self._listener.accept()
                if not is_of_this_process(peer, self._listener.getsockname()):
                    line.close()
                    continue
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._lines.add(line)
                threading.Thread(target=self._converse, args=(line,), daemon=True).start()

    def _converse(self, line: socket.socket) -> None:
        with contextlib.suppress(OSError, DealerError), line, line.makefile("rb") as stream:
            while (request := read_local_request(stream, _MOST_BYTES)) is not None:
                with self._turn:
                    pieces = self._pieces(request.path, request.body)
                line.sendall(head_of(200, sum(map(len, pieces)), close=False))
                for piece in pieces:
                    line.sendall(piece)
        self._lines.discard(line)

    def _pieces(self, path: str, body: bytes) -> Buffers:
        try:
            if self.failure is not None:
                raise self.failure
            return frame(self._answer(read_call(path, body)))
        except DealerError as error:
            self.failure = error
            return frame_error(str(error))


def _wake(end: socket.socket) -> None:
    """End a socket under the thread that waits at it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class Recorder:
    """Writes down what SPU asks for, and answers with zeros: for a rehearsal."""

    def __init__(self) -> None:
        self._steps: list[Step] = []
        self._ledger: Ledger | None = None
        self._opens_kernel = False

    def __call__(self, call: Call) -> Buffers:
        if self._ledger is None:
            self._ledger = Ledger(call.counts[0])
        self._steps.append(self._ledger.enter_call(call, opens_kernel=self._opens_kernel))
        self._opens_kernel = False
        return zeros(call.step)

    def expect_kernel(self) -> None:
        """Take the next request for the first use of a kernel."""
        self._opens_kernel = True

    def take(self) -> Script:
        """Return the script since the last one was taken."""
        steps, self._steps = tuple(self._steps), []
        return Script(steps)


class ScriptFollower:
    """Holds SPU to a job, once the first requests have shown the seeds.

    Until a job is followed, answers are zeros: whatever is computed then comes
    out wrong, and must not be secret.
    """

    def __init__(self) -> None:
        self.seeds: tuple[bytes, ...] = ()
        self._ledger = Ledger()
        self._job: Job | None = None
        self._supply: Supply | None = None
        self._inference, self._step, self._offset = 0, 0, 0
        self._last: tuple[Call, Buffers] | None = None

    def follow(self, job: Job, supply: Supply | None) -> None:
        """Answer for a job from now on: with its material, or with zeros."""
        self._job, self._supply = job, supply

    @property
    def count(self) -> int:
        """The block at which the next operand begins."""
        return self._ledger.next

    def __call__(self, call: Call) -> Buffers:
        if self._last is not None and self._last[0] == call:
            return self._last[1]  # SPU asks again for an answer that got lost
        buffers = self._greet(call) if self._job is None else self._serve(call, self._job)
        self._last = (call, buffers)
        return buffers

    def require_end(self, inference: int) -> None:
        """Make sure that SPU asked for all of an inference's script, and no more."""
        if (self._inference, self._step) != (inference + 1, 0):
            raise DealerError(
                f"SPU did not ask for what the script of inference {inference} ends with; the run "
                "was given up"
            )

    def _greet(self, call: Call) -> Buffers:
        if self.seeds not in ((), call.seeds):
            raise DealerError("SPU changed its seeds")
        self.seeds = call.seeds
        self._ledger.enter_call(call)
        return zeros(call.step)

    def _serve(self, call: Call, job: Job) -> Buffers:
        script, _ = job.inference(self._inference)
        step = script.steps[self._step]
        expected = (replace(step, kernel=None), self._ledger.enter(step), job.seeds)
        if (call.step, call.counts, call.seeds) != expected:
            raise DealerError(
                f"SPU asks for another {call.step.kind.value} than step {self._step} of its "
                "script; the run was given up"
            )
        buffers = zeros(step) if self._supply is None else self._material(step, self._supply)
        self._step += 1
        if self._step == len(script.steps):
            self._inference, self._step, self._offset = self._inference + 1, 0, 0
        return buffers

    def _material(self, step: Step, supply: Supply) -> Buffers:
        whole, buffers = supply.material(self._inference), []
        supply.forget(self._inference, self._offset)
        for length in step.answer_bytes:
            buffers.append(whole[self._offset : self._offset + length])
            self._offset += length
        return buffers


def zeros(step: Step) -> Buffers:
    """Return an adjustment that changes nothing."""
    return [bytes(length) for length in step.answer_bytes]

"""A party's side of a dealer: authorise a job, and fetch its material."""

import contextlib
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, HTTPSConnection

from mpcvit.codec import decode
from mpcvit.dealer import SPU_VERSION, DealerTerms
from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.jobs import Job
from mpcvit.hosts.credentials import why_not_accepted
from mpcvit.hosts.peer import DEALER, peer_of
from mpcvit.storage import read_json

_RETRY_S = 0.3
_MOST_ANSWER = 1 << 12
_PIECE_BYTES = 1 << 18


class _NoAnswerError(Exception):
    """Nobody answered at the dealer's address, not even with a refusal."""


@dataclass(frozen=True, kw_only=True)
class DealerClient:
    """A connection to one dealer. A request that fails is tried again for `patience_s`."""

    address: str  # host:port, as in the dealer's certificate
    fingerprint: str  # of the key that seeds are encrypted to
    context: ssl.SSLContext
    patience_s: float
    dialled: str = ""  # where the address is reached, if elsewhere

    def check(self) -> None:
        """Make sure that the dealer is there, and the one that is meant."""
        content = self._patiently(
            lambda wait_s: self._ask("GET", "/terms", wait_s=wait_s), is_first=True
        )
        where = f"the answer of the dealer at {self.address}"
        terms = decode(DealerTerms, read_json(content, where), where)
        if terms.key != self.fingerprint:
            raise DealerError(
                f"the dealer at {self.address} has another key than the one given for it"
            )
        if terms.spu != SPU_VERSION:
            raise DealerError(
                f"the dealer at {self.address} serves SPU {terms.spu[:20]!r}, not {SPU_VERSION}"
            )

    def metrics(self) -> bytes:
        """Return what the dealer has served to this party so far, as JSON."""
        return self._patiently(lambda wait_s: self._ask("GET", "/metrics", wait_s=wait_s))

    def authorise(self, job: Job) -> None:
        content = job.to_bytes()
        self._patiently(lambda wait_s: self._ask("POST", "/jobs", content, wait_s=wait_s))

    def wait_until_open(self, job: Job) -> None:
        """Return once the other party has authorised the job too.

        From then on the dealer uses its seeds for nothing else. A party waits for that
        before its masks hide anything.
        """
        self._patiently(lambda wait_s: self._ask("GET", f"/jobs/{job.digest}", wait_s=wait_s))

    def fetch(
        self, job: Job, inference: int, into: memoryview, done: Callable[[int], None]
    ) -> None:
        """Fill a buffer with an inference's material; `done` takes the bytes so far.

        After a break it goes on with the first step that is not whole.
        """
        script, _ = job.inference(inference)
        ends = [0]
        for step in script.steps:
            ends.append(ends[-1] + sum(step.answer_bytes))
        filled = farthest = 0
        moved = time.monotonic()

        def go_on(wait_s: float) -> bytes:
            nonlocal filled, farthest, moved
            first = max(index for index, end in enumerate(ends) if end <= filled)
            filled = ends[first]
            path = f"/jobs/{job.digest}/{inference}/{first}"
            with self._answer("GET", path, wait_s=wait_s) as answer:
                if answer.length != len(into) - filled:
                    raise DealerError(f"the dealer at {self.address} offers material of no use")
                while filled < len(into):
                    count = answer.readinto(into[filled : filled + _PIECE_BYTES])
                    if not count:
                        raise ConnectionResetError("answered short")
                    filled += count
                    if filled > farthest:
                        farthest, moved = filled, time.monotonic()
                    done(filled)
            return b""

        self._patiently(go_on, lambda: moved)

    def _patiently(
        self,
        attempt: Callable[[float], bytes],
        moved: Callable[[], float] = lambda: -math.inf,
        *,
        is_first: bool = False,
    ) -> bytes:
        """Try until it works, or nothing has moved for too long.

        An attempt takes how long it may wait for an answer, and `moved` is when it last got
        further. A dealer that was there may be about to come back; one that never was is not.
        """
        began = time.monotonic()

        def left_s() -> float:
            return max(began, moved()) + self.patience_s - time.monotonic()

        while True:
            try:
                return attempt(max(left_s(), _RETRY_S))
            except LaterError as error:
                failure = f"refuses: {error}"
            except _NoAnswerError:
                failure = "does not answer"
            except TimeoutError:
                failure = "stalls"
            except ssl.SSLCertVerificationError as error:
                raise DealerError(
                    f"the certificate of the dealer at {self.address} is not accepted: "
                    f"{why_not_accepted(error)}"
                ) from error
            except ssl.SSLError as error:
                failure = f"hung up: {(error.reason or str(error)).replace('_', ' ').lower()}"
            except ConnectionRefusedError:
                if is_first:
                    raise DealerError(
                        f"nobody listens at the dealer's address {self.address}; is `mpcvit dealer "
                        "serve` running there?"
                    ) from None
                failure = "is not there: connection refused"
            except (OSError, HTTPException, ValueError) as error:
                failure = f"breaks off: {getattr(error, 'strerror', None) or error}"
            if left_s() < _RETRY_S:
                raise DealerError(
                    f"the dealer at {self.address} {failure} (tried for {self.patience_s:g} s)"
                )
            time.sleep(_RETRY_S)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, *, wait_s: float | None = None
    ) -> bytes:
        with self._answer(method, path, body, wait_s=wait_s) as answer:
            return answer.read(_MOST_ANSWER)

    @contextmanager
    def _answer(
        self, method: str, path: str, body: bytes | None = None, *, wait_s: float | None = None
    ) -> Iterator[HTTPResponse]:
        """Give the answer to one request, whose body is still to be read."""
        host, _, port = self.address.rpartition(":")
        connection = HTTPSConnection(host, int(port))
        with contextlib.closing(connection):
            connection.sock = line = self._dial(host, wait_s or self.patience_s)
            connection.request(method, path, body)
            answer = connection.getresponse()
            line.settimeout(self.patience_s)
            if answer.status != 200:
                reason = answer.read(_MOST_ANSWER).decode(errors="replace")
                reason = reason if reason.isprintable() else repr(reason)
                if answer.status == 503:
                    raise LaterError(reason)
                raise DealerError(f"the dealer at {self.address} refuses: {reason}")
            yield answer

    def _dial(self, host: str, wait_s: float) -> ssl.SSLSocket:
        place, _, port = (self.dialled or self.address).rpartition(":")
        try:
            plain = socket.create_connection((place, int(port)), timeout=wait_s)
        except TimeoutError as error:
            raise _NoAnswerError from error
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = self.context.wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        if (role := peer_of(line).role) != DEALER:
            line.close()
            raise DealerError(f"the certificate at {self.address} is that of a '{role}'")
        return line

"""SPU's runtime of one party, and what it counts: bytes and exchanges of every operation.

SPU's Python objects have no counters. With `enable_pphlo_profile` each run of an
executable ends in a report on the process's log, which is sent to a file here.
The log belongs to the process, so one runtime in it may be profiled at a time.
"""

import atexit
import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import spu
from spu import libspu

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import OperationCost, StageCost
from mpcvit.dealer.party.gateway import Gateway
from mpcvit.errors import UserError
from mpcvit.secure.dealing.endpoint import require_known_spu
from mpcvit.secure.parties.roles import ROLES, Role
from mpcvit.secure.spu.compile import FIRST_USED, first_use
from mpcvit.secure.spu.link import Channel, connect_in_memory, lost
from mpcvit.secure.spu.shares import Sharing, bytes_field, number_field, runtime_config

_ENDED = re.compile(r"\[Profiling\] SPU execution (\S+) completed.*, total time (\S+)s\.")
_OPERATION = re.compile(
    r"- pphlo\.(?:custom_call: mhlo\.)?(\S+), executed (\d+) times, duration (\S+)s, "
    r"send bytes (\d+) recv bytes \d+, send actions (\d+), recv actions \d+"
)
_LINK = re.compile(
    r"Link details: total send bytes (\d+), recv bytes (\d+), "
    r"send actions (\d+), recv actions (\d+)"
)
_WRITTEN_WITHIN_S = 10.0
one_at_a_time = threading.Lock()
"""Held by a run in threads that counts, as SPU's log belongs to the process."""

_CONFIG_FIELD = 71  # of SPU's RuntimeConfig: a TTPBeaverConfig, whose setter is broken
_HOST, _RANK, _SCHEMA, _KEY = 1, 2, 3, 4  # fields of a TTPBeaverConfig


@dataclass(frozen=True, kw_only=True)
class DealerSettings:
    """A gateway, and the dealer's key to which SPU encrypts its seed."""

    gateway: Gateway
    public_pem: str

    def configure(self, config: Any, number: int) -> Any:
        """Return a runtime's settings, with the gateway in place of SPU's own dealer.

        Every party is configured as the one that adjusts; see `dealer/party/gateway.py`.
        """
        require_known_spu()
        config.beaver_type = libspu.RuntimeConfig.BeaverType.TrustedThirdParty
        place = (
            bytes_field(_HOST, self.gateway.address.encode())
            + number_field(_RANK, number)
            + bytes_field(_SCHEMA, b"SM2")  # the only name it knows; the key's own kind counts
            + bytes_field(_KEY, self.public_pem.encode())
        )
        whole = libspu.RuntimeConfig()
        whole.ParseFromString(config.SerializeToString() + bytes_field(_CONFIG_FIELD, place))
        return whole


class Engine:
    """SPU's runtime of one party, with the shares that go in and out and the costs it counts.

    Parties' runtimes talk as they start, so terms must be agreed on before.
    """

    def __init__(
        self, channel: Channel, profile: Profile, dealing: DealerSettings | None = None
    ) -> None:
        if (profile.dealer is Dealer.THIRD_PARTY) != (dealing is not None):
            raise UserError(
                "this measurement has no dealer; take a profile of another kind, such as semi2k-wan"
            )
        self._channel, self._silence_s = channel, profile.limits.silence_s
        self._dealing = dealing
        self.sharing = Sharing(channel, profile)
        self._log = profile_log()
        config = runtime_config(profile)
        config.enable_pphlo_profile = channel.counts_costs
        if dealing is not None:
            config = dealing.configure(config, channel.number)
        try:
            self.runtime = spu.Runtime(channel.context, config)
        except RuntimeError as error:
            raise lost(error, self._silence_s) from error

    def use_first(self, kernel: str, shape: tuple[int, ...]) -> StageCost:
        """Open a kernel under the mask that later products reuse.

        SPU knows the mask by where the kernel lies in memory. So its variable
        must be neither set anew nor deleted from here on.
        """
        cost = self.run(first_use(kernel, shape), "first use")
        self.runtime.del_var(FIRST_USED)
        return cost

    def set_constants(self, constants: Mapping[str, np.ndarray]) -> None:
        """Let stages read constants that all parties know."""
        for name, array in constants.items():
            self.runtime.set_var(name, self.sharing.publish(array))

    def run(self, executable: Any, name: str) -> StageCost:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            self.runtime.run(executable)
        except RuntimeError as error:
            if self._dealing is not None and self._dealing.gateway.failure is not None:
                raise self._dealing.gateway.failure from error
            raise lost(error, self._silence_s) from error
        seconds = time.perf_counter() - wall
        compute_s = (time.process_time() - cpu) / self._channel.parties_here
        if self._channel.counts_costs:
            return self._log.read(executable.name, name, compute_s)
        return StageCost(
            name=name,
            sent_bytes=0,
            received_bytes=0,
            exchanges=0,
            seconds=seconds,
            compute_s=min(compute_s, seconds),
        )


@dataclass
class ProfileLog:
    """SPU's log, read piece by piece."""

    path: Path
    offset: int = 0

    def read(self, executable: str, name: str, compute_s: float) -> StageCost:
        """Return the cost of the executable that has just run.

        SPU's logger may write a moment after the run has ended, and the log may
        begin with what a run that failed had left to say.
        """
        text, patience = "", time.monotonic() + _WRITTEN_WITHIN_S
        while (found := find_report(text, executable)) is None:
            if time.monotonic() > patience:
                raise RuntimeError(f"SPU's log has no report of {executable}")
            if fresh := self._unread():
                text += fresh
            else:
                time.sleep(0.001)
        return parse(found, name, compute_s)

    def _unread(self) -> str:
        with self.path.open("rb") as file:
            if self.path.stat().st_size < self.offset:  # SPU has begun a new file
                self.offset = 0
            file.seek(self.offset)
            text = file.read()
        self.offset += len(text)
        return text.decode(errors="replace")


def find_report(text: str, executable: str) -> str | None:
    """Return the last whole report of an executable in the text of a log."""
    begins = [ended.start() for ended in _ENDED.finditer(text) if ended[1] == executable]
    if not begins or not (link := _LINK.search(text, begins[-1])):
        return None
    return text[begins[-1] : link.end()]


def parse(report: str, name: str, compute_s: float) -> StageCost:
    ended, link = _ENDED.search(report), _LINK.search(report)
    assert ended is not None, "a report begins with its executable"
    assert link is not None, "a report ends with the link's totals"
    operations = [
        OperationCost(
            name=operation,
            executions=int(executions),
            sent_bytes=int(sent_bytes),
            exchanges=int(exchanges),
            seconds=float(seconds),
        )
        for operation, executions, seconds, sent_bytes, exchanges in _OPERATION.findall(report)
    ]
    seconds = float(ended[2])
    return StageCost(
        name=name,
        sent_bytes=int(link[1]),
        received_bytes=int(link[2]),
        exchanges=int(link[3]),
        seconds=seconds,
        compute_s=min(compute_s, seconds),
        operations=tuple(operation for operation in operations if operation.name != "free"),
    )


@cache
def profile_log() -> ProfileLog:
    """Send this process's SPU log into a file of its own, once."""
    folder = Path(tempfile.mkdtemp(prefix="mpcvit-spu-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    options = libspu.logging.LogOptions()
    options.enable_console_logger = False
    options.system_log_path = str(folder / "spu.log")
    libspu.logging.setup_logging(options)
    return ProfileLog(folder / "spu.log")


def run_in_threads(profile: Profile, take_part: Callable[[Channel], Any]) -> dict[Role, Any]:
    """Call a function once per role, each in a thread with a channel of its own."""
    profile_log()  # before any thread compiles: SPU's log must not be set up while in use
    results: dict[Role, Any] = {}
    failures: list[BaseException] = []
    session = secrets.token_hex(8)

    def act(role: Role) -> None:
        try:
            channel = connect_in_memory(role, profile.protocol, profile.limits, session)
            results[role] = take_part(channel)
        except BaseException as error:  # whatever it is, the caller's thread raises it
            failures.append(error)

    threads = [
        threading.Thread(target=act, args=(role,), daemon=True) for role in ROLES[profile.protocol]
    ]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads) and not failures:
            for thread in threads:
                thread.join(timeout=0.05)
    finally:
        _remove_masks()
    if failures:
        raise failures[0]
    return results


def _remove_masks() -> None:
    """Remove reused masks, which lie where the process runs: in a party's own folder."""
    for folder in Path.cwd().glob(f"BeaverCache.{os.getpid()}.*"):
        shutil.rmtree(folder, ignore_errors=True)

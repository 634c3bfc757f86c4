"""SPU's runtime of one party."""

import time
from typing import Any

import spu

from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import Dealer
from mpcvit.artifacts.record import StageCost
from mpcvit.errors import UserError
from mpcvit.secure.dealing.spu_settings import DealerSettings
from mpcvit.secure.spu.compile import FIRST_USED, first_use
from mpcvit.secure.spu.link import Channel, lost
from mpcvit.secure.spu.shares import Sharing, runtime_config
from mpcvit.secure.spu.trace import profile_log


class Engine:
    """SPU's runtime of one party, with the shares that go in and out and the costs it counts.

    Parties' runtimes talk as they start, so terms must be agreed on before.
    """

    def __init__(
        self, channel: Channel, profile: Profile, dealing: DealerSettings | None = None
    ) -> None:
        if (profile.dealer is Dealer.THIRD_PARTY) != (dealing is not None):
            raise UserError("this is done without a dealer; take a profile without one")
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

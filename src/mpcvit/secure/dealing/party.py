"""A party's dealings with the dealer, in one session.

Both parties agree on the program's script. Their runtimes start,
and a greeting shows each the seeds of both, encrypted. Of these and the script
both make the same job, and authorise it with the dealer. Then the model owner
fetches the material of each inference before it begins; so nothing can go wrong
with the dealer in the middle of one.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

import jax.numpy as jnp
from spu import libspu

from mpcvit.artifacts.profile import Profile
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.gateway import Gateway, ScriptFollower
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.keys import load_public_key
from mpcvit.dealer.script import Script, Scripts
from mpcvit.dealer.supply import FetchCost, Supply
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.dealing.rehearsal import scripts_of
from mpcvit.secure.dealing.spu_settings import DealerSettings
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.events import MaterialFetched
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.compile import Program, compile_function
from mpcvit.secure.spu.engine import Engine
from mpcvit.secure.spu.link import Channel


class PartyDealing:
    """What one party does about the dealer, step by step."""

    def __init__(self, channel: Channel, profile: Profile, place: DealerEndpoint) -> None:
        self._channel, self._profile = channel, profile
        self._public = load_public_key(place.key)
        self._client = place.client_of(profile)
        self._follower = ScriptFollower()
        self._set_up = Script(())
        self._scripts: dict[int, Script] = {}
        self._supply: Supply | None = None
        self._part = 0  # of the job: its set-up, if it has one, and inferences
        self.settings = DealerSettings(gateway=Gateway(self._follower), public_pem=self._public.pem)

    def terms(
        self, programs: Mapping[int, Program], profile: Profile, carried: Scripts
    ) -> dict[str, str]:
        """What both parties must find the same: the dealer's key, and the scripts."""
        for batch, program in programs.items():
            found = scripts_of(program, profile, carried)
            self._set_up, self._scripts[batch] = found.set_up, found.inference
        scripts = (self._set_up, *self._scripts.values())
        digests = (script.digest[:16] for script in scripts if script.steps)
        return {"dealer's key": self._public.fingerprint, "dealer's script": "+".join(digests)}

    def make_job(self, engine: Engine, batches: Sequence[int]) -> Job:
        """The job for so many images at a time, after a greeting that shows the seeds."""
        engine.runtime.set_var("greeting", engine.sharing.make_up((1,)))
        executable = libspu.Executable(
            name="greeting",
            input_names=["greeting"],
            output_names=["greeted"],
            code=compile_function(lambda x: x * x, jnp.zeros(1, jnp.float32)),
        )
        engine.run(executable, "greeting")
        for name in ("greeting", "greeted"):
            engine.runtime.del_var(name)
        set_up = [(self._set_up, 1)] if self._set_up.steps else []
        inferences = [(self._scripts[batch], len(list(same))) for batch, same in groupby(batches)]
        return Job(
            seeds=self._follower.seeds,
            start=self._follower.count,
            plan=(*set_up, *inferences),
            key=self._public.fingerprint,
        )

    def authorise(self, job: Job) -> None:
        """Tell the dealer, make sure that both did, and begin to fetch."""
        failure = ""
        try:
            self._client.authorise(job)
            self._client.wait_until_open(job)
        except DealerError as error:
            failure = str(error)
        for peer in self._channel.peers:
            self._channel.send_json(peer, {"failed": failure})
        if failure:
            raise DealerError(failure)
        for peer in self._channel.peers:
            self._hear(peer)
        if self._channel.role is Role.MODEL_OWNER:
            self._supply = Supply(self._client, job)
            self._supply.prefetch(0)
        self._follower.follow(job, self._supply)

    def await_material(self) -> MaterialFetched:
        """Wait until the next part's material is there, on both sides; return what it took."""
        started = time.perf_counter()
        if self._supply is None:
            offline = self._hear_until_ready()
        else:
            offline = self._fetch(self._supply, self._part)
        return MaterialFetched(**asdict(offline), wait_s=time.perf_counter() - started)

    def end_part(self) -> None:
        """Make sure that all of a part's script was followed, and forget its material."""
        self._follower.require_end(self._part)
        if self._supply is not None:
            self._supply.release(self._part)
        self._part += 1

    def close(self) -> None:
        self.settings.gateway.close()

    def _fetch(self, supply: Supply, inference: int) -> FetchCost:
        (peer,) = self._channel.peers

        def tick(done: int, total: int) -> None:
            self._channel.send_json(peer, {"done": done, "total": total})

        try:
            offline = supply.wait(inference, tick)
        except DealerError as error:
            self._channel.send_json(peer, {"failed": str(error)})
            raise
        self._channel.send_json(peer, {"ready": asdict(offline)})
        supply.prefetch(inference + 1)
        return offline

    def _hear_until_ready(self) -> FetchCost:
        while "ready" not in (message := self._hear(Role.MODEL_OWNER)):
            pass
        try:
            found = message["ready"]
            return FetchCost(
                received_bytes=int(found["received_bytes"]), fetch_s=float(found["fetch_s"])
            )
        except (TypeError, KeyError, ValueError) as error:
            raise PartyError("the model owner sent what cannot be understood") from error

    def _hear(self, peer: Role) -> dict[str, Any]:
        """A peer's next word on the dealer; its failure is this party's too."""
        message = self._channel.receive_json(peer)
        if not isinstance(message, dict):
            raise PartyError(f"the {peer.value} sent what cannot be understood")
        if failure := message.get("failed"):
            raise PartyError(f"the {peer.value} and its dealer: {str(failure)[:300]!r}")
        return message

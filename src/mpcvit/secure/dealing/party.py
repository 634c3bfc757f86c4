"""A party's dealings with the dealer, in one session.

Both parties agree on the program's script. Their runtimes start,
and a greeting shows each the seeds of both, encrypted. Of these and the script
both make the same job, and authorise it with the dealer. Then the model owner
fetches the material of each inference before it begins; so nothing can go wrong
with the dealer in the middle of one.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import cast

import jax.numpy as jnp
from spu import libspu

from mpcvit.artifacts.profile import Profile
from mpcvit.codec import decode, encode, tagged
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.jobs import Job
from mpcvit.dealer.keys import load_public_key
from mpcvit.dealer.party.gateway import Gateway, ScriptFollower
from mpcvit.dealer.party.supply import FetchCost, Supply
from mpcvit.dealer.script import Script, Scripts
from mpcvit.errors import UserError
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.dealing.rehearsal import scripts_of
from mpcvit.secure.errors import PartyError
from mpcvit.secure.made_once import Progress
from mpcvit.secure.parties.events import MaterialFetched
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.compile import Program, compile_function
from mpcvit.secure.spu.engine import DealerSettings, Engine
from mpcvit.secure.spu.link import Channel


@tagged("failed")
@dataclass(frozen=True, kw_only=True)
class _Failed:
    """The sender and its dealer failed."""

    reason: str


@tagged("authorised")
@dataclass(frozen=True, kw_only=True)
class _Authorised:
    """The dealer has the job from both parties."""


@tagged("fetching")
@dataclass(frozen=True, kw_only=True)
class _Fetching:
    """A sign of life while material is fetched, in bytes."""

    done: int
    total: int


@tagged("ready")
@dataclass(frozen=True, kw_only=True)
class _Ready:
    """The next part's material is there."""

    cost: FetchCost


_Message = _Failed | _Authorised | _Fetching | _Ready


class PartyDealing:
    """A party's side of the dealer, step by step."""

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
        self,
        programs: Mapping[int, Program],
        profile: Profile,
        carried: Scripts,
        progress: Progress = lambda done, total: None,
    ) -> dict[str, str]:
        """Return what both parties must have in common: the dealer's key, and the scripts."""
        for batch, program in programs.items():
            found = scripts_of(program, profile, carried, progress)
            self._set_up, self._scripts[batch] = found.set_up, found.inference
        scripts = (self._set_up, *self._scripts.values())
        digests = (script.digest[:16] for script in scripts if script.steps)
        return {"dealer's key": self._public.fingerprint, "dealer's script": "+".join(digests)}

    def make_job(self, engine: Engine, batches: Sequence[int]) -> Job:
        """Return the job for batches of images, after a greeting that shows the seeds."""
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
        try:
            self._client.authorise(job)
            self._client.wait_until_open(job)
        except DealerError as error:
            self._say(_Failed(reason=str(error)))
            raise
        self._say(_Authorised())
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
        try:
            cost = supply.wait(
                inference, lambda done, total: self._say(_Fetching(done=done, total=total))
            )
        except DealerError as error:
            self._say(_Failed(reason=str(error)))
            raise
        self._say(_Ready(cost=cost))
        supply.prefetch(inference + 1)
        return cost

    def _hear_until_ready(self) -> FetchCost:
        while not isinstance(message := self._hear(Role.MODEL_OWNER), _Ready):
            pass
        return message.cost

    def _say(self, message: _Message) -> None:
        for peer in self._channel.peers:
            self._channel.send_json(peer, encode(message))

    def _hear(self, peer: Role) -> _Message:
        """Return a peer's next message on the dealer; its failure is this party's too."""
        try:
            document = self._channel.receive_json(peer)
            message = decode(cast(type[_Message], _Message), document, "message")
        except (UserError, ValueError, TypeError, ArithmeticError) as error:
            if isinstance(error, PartyError):
                raise
            raise PartyError(f"the {peer.value} sent what cannot be understood") from error
        if isinstance(message, _Failed):
            raise PartyError(f"the {peer.value} cannot use the dealer: {message.reason[:300]!r}")
        return message

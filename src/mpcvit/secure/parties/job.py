"""What a party's process is asked to do: what it owns first, and then where the parties meet."""

from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import Reveal
from mpcvit.codec import tagged
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from mpcvit.secure.parties.agreement import Request
from mpcvit.secure.parties.roles import Address, Role


@tagged("model")
@dataclass(frozen=True, kw_only=True)
class OwnModel:
    """A model owner's file, and what it reveals of the logits."""

    path: Path
    reveal: Reveal = Reveal.CLASS


@tagged("images")
@dataclass(frozen=True, kw_only=True)
class OwnImages:
    """A data owner's picture files, or an open file of its own that holds them as an array."""

    files: tuple[Path, ...] = ()
    descriptor: int | None = None
    batch_size: int


@tagged("function")
@dataclass(frozen=True, kw_only=True)
class OwnFunction:
    """A function by a name that all parties know, to be measured on random inputs."""

    name: str
    model: ModelConfig


@tagged("nothing")
@dataclass(frozen=True, kw_only=True)
class OwnNothing:
    """A third party's contribution."""


Own = OwnModel | OwnImages | OwnFunction | OwnNothing


@dataclass(frozen=True, kw_only=True)
class PartyJob:
    """The first message to a party: its own secrets' places, and no other party's."""

    role: Role
    scratch: Path  # the folder to remove if the supervisor is gone
    own: Own
    dealer: DealerEndpoint | None = None


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The second message to a party: where and how the parties meet."""

    addresses: dict[Role, Address]
    session: str
    profile: Profile
    announced: Request | None = None  # what a client was admitted with
    tls: Path | None = None  # certificates for SPU's own encryption, in benchmarks

"""What parties tell each other before anything is shared: terms, and how many images come."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mpcvit.artifacts.profile import Profile
from mpcvit.codec import require
from mpcvit.secure.parties.roles import Role

_SESSION = "mpcvit-session/2"
_PACKAGES = ("mpcvit", "spu", "jax")
_MOST_SHOWN = 60  # characters
_MAX_IMAGES = 1_000_000

Terms = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request of the data owner: how many images it brings, and how many at a time."""

    images: int
    batch_size: int

    def __post_init__(self) -> None:
        for name in ("images", "batch_size"):
            value = getattr(self, name)
            require(0 < value <= _MAX_IMAGES, name, f"must lie in [1, {_MAX_IMAGES}]")

    @property
    def batches(self) -> list[int]:
        """Return the number of images in each batch.

        >>> Request(images=7, batch_size=3).batches
        [3, 3, 1]
        """
        whole, rest = divmod(self.images, self.batch_size)
        return [self.batch_size] * whole + ([rest] if rest else [])


def agreement_of(profile: Profile) -> Terms:
    return {
        "session": _SESSION,
        **{f"version of {name}": importlib.metadata.version(name) for name in _PACKAGES},
        **{f"profile's {name}": value for name, value in profile.shared_settings().items()},
    }


def first_difference(own_role: Role, own: Terms, peer: Role, theirs: Terms) -> str:
    """Return the first difference as a sentence with both values, or nothing."""
    for name in (*own, *theirs):
        mine, other = own.get(name), theirs.get(name)
        if mine != other:
            return (
                f"the parties differ in {_shown(name)}: the {own_role.value} has {_shown(mine)}, "
                f"the {peer.value} has {_shown(other)}"
            )
    return ""


def _shown(value: Any) -> str:
    """Return a value for a sentence, however long a peer made it."""
    text = repr(value).strip("'\"")  # repr, as a peer may send control characters
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."

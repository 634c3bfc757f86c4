"""Terms: what parties must have in common before anything else is said."""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from mpcvit.artifacts.profile import Profile
from mpcvit.secure.parties.roles import Role

_SESSION = "mpcvit-session/1"
_PACKAGES = ("mpcvit", "spu", "jax")
_MOST_SHOWN = 60  # characters

Terms = Mapping[str, Any]


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

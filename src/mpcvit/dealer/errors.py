"""What a dealer refuses, and what goes wrong on the way to one."""

from mpcvit.errors import UserError


class DealerError(UserError):
    """A dealer is out of reach, refuses, or gave what cannot be used."""


class LaterError(DealerError):
    """Refused now, but it may be granted a little later."""

"""What ends a private run."""

from mpcvit.errors import UserError


class PartyError(UserError):
    """A party died, fell silent, or said what cannot be understood."""

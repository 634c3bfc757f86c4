"""Why a checkpoint cannot be used: a sentence, whose subject follows where it is known."""

from collections.abc import Iterator
from contextlib import contextmanager

from mpcvit.errors import UserError


class UnusableError(UserError):
    """A predicate, such as "has no classifier", of a checkpoint or of a file beside it."""


@contextmanager
def about(subject: str) -> Iterator[None]:
    """Complete what is said in the block by its subject: the name of a file."""
    try:
        yield
    except UnusableError as error:
        raise UserError(f"{subject} {error}") from error

"""The one exception that a user's mistake raises."""

from collections.abc import Iterator
from contextlib import contextmanager

_NO_BREAK = "\N{NO-BREAK SPACE}"


class UserError(Exception):
    """Input that cannot be used: says what was wrong, where, and what to do.

    The command line prints its message as one sentence and exits with code 2.
    """


class MissingExtraError(UserError):
    """A package that only an extra installs, such as `mpcvit[train]`, is missing."""


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Say which extra of the package to install if an import of the block fails.

    >>> with needs_extra("train", "the moon"):
    ...     import no_such_package
    Traceback (most recent call last):
    mpcvit.errors.MissingExtraError: the moon needs no_such_package; run pip install 'mpcvit[train]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "a package").partition(".")[0]
        raise MissingExtraError(
            f"{what} needs {missing}; run pip install 'mpcvit[{extra}]'"
        ) from error


def shown(text: str) -> str:
    """Return a text that others wrote as a terminal may show it: nothing in it is obeyed.

    >>> shown("cat\\x1b[2J"), shown("naïve, 猫")
    ('cat\\\\x1b[2J', 'naïve, 猫')
    """
    return "".join(
        character
        if character.isprintable() or character == _NO_BREAK
        else character.encode("unicode_escape").decode()
        for character in text
    )


def shown_lines(text: str) -> str:
    """Return a text like `shown`, but keep its lines apart."""
    return "\n".join(map(shown, text.split("\n")))


def nearest(name: str, known: list[str]) -> str:
    """Suggest the valid name closest to a misspelt one, or list them all.

    >>> nearest("epoch", ["epochs", "batch_size"])
    "did you mean 'epochs'?"
    >>> nearest("zzz", ["epochs", "batch_size"])
    'valid names: batch_size, epochs'
    """
    import difflib

    matches = difflib.get_close_matches(name, known, n=1)
    if matches:
        return f"did you mean '{matches[0]}'?"
    return "valid names: " + ", ".join(sorted(known))

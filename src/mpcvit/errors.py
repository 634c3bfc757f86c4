"""The one exception that a user's mistake raises."""


class UserError(Exception):
    """Input that cannot be used: says what was wrong, where, and what to do.

    The command line prints its message as one sentence and exits with code 2.
    """


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

"""Which cases of a test run each time, and which with `make long` alone."""

import pytest


def mostly_long(values, *always):
    """Return the values as parameters; all but those that run always are long."""
    marks = {True: (), False: (pytest.mark.long,)}
    return [
        pytest.param(value, marks=marks[value in always], id=getattr(value, "__name__", str(value)))
        for value in values
    ]

"""Lowering: a trained checkpoint becomes a program of few exchanges."""

from enum import Enum

ERROR_BUDGET = 0.02  # of the logits' errors, root mean square, in parts of their spread
EMULATED_BATCH = 64  # images; XLA compiles the same program for 256 in several times as long


class Guard(str, Enum):
    """A choice whether a program refuses an answer if some value left its interval."""

    ON = "on"
    OFF = "off"
    AUTO = "auto"

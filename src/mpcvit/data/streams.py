"""Random numbers that belong to an image or a pair, not to the process that draws them."""

from enum import IntEnum
from typing import Any

import numpy as np


class Purpose(IntEnum):
    """What a stream is for; streams of different purposes never meet."""

    ORDER = 0
    IMAGE = 1
    ERASING = 2
    PAIR = 3


class Streams:
    """One independent stream of random numbers per (seed, purpose, epoch, index).

    Philox turns a key and a counter into random bits. Here the key is (seed,
    purpose), the counter's upper words are (epoch, index), and its lowest word
    counts what is drawn: no two streams share a counter value.

    One generator is moved from stream to stream, since setting its state takes a
    tenth of the time that making a generator does. A generator from `at` is
    therefore good until the next call of `at`.

    >>> streams = Streams(seed=5, purpose=Purpose.IMAGE)
    >>> first = streams.at(epoch=0, index=3).random()
    >>> other = streams.at(epoch=0, index=4).random()
    >>> first == streams.at(epoch=0, index=3).random(), first == other
    (True, False)
    """

    def __init__(self, *, seed: int, purpose: Purpose) -> None:
        self._bits = np.random.Philox(key=np.array([seed % 2**64, purpose], np.uint64))
        self._generator = np.random.Generator(self._bits)
        state: Any = self._bits.state  # numpy's annotation forgets the nested arrays
        self._state = state
        self._counter = state["state"]["counter"]

    def at(self, *, epoch: int, index: int) -> np.random.Generator:
        self._counter[:] = (0, index, epoch, 0)
        self._bits.state = self._state
        return self._generator

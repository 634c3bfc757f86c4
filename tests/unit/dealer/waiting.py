"""Waiting for another thread, for as long as a busy machine may need."""

import time

import pytest


def wait_until(condition):
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came to be")

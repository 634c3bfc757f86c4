"""The model's own code never leaves a dtype to chance (Optax's does)."""

import jax
import pytest


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        yield

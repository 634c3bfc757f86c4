"""Scaling attention: both orders of its products are one function."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpcvit.attention.kind_math import attention_scores
from mpcvit.attention.scaling import scaling_attention, scaling_weights
from tests.tolerances import F32, assert_close


@given(st.integers(1, 13), st.integers(1, 11), st.integers(1, 7), st.integers(0, 1000))
def test_reassociates(queries, keys, head_dim, seed):
    rng = np.random.default_rng(seed)
    q = jnp.asarray(rng.standard_normal((queries, head_dim)), jnp.float32)
    k, v = jnp.asarray(rng.standard_normal((2, keys, head_dim)), jnp.float32)
    quadratic = scaling_weights(attention_scores(q, k)) @ v
    expected = (q @ k.T) @ v / (keys * np.sqrt(head_dim))
    assert_close(quadratic, expected, F32)
    assert_close(scaling_attention(q, k, v), expected, F32)

"""Cross-entropy and accuracy."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Logits = Float[Array, "batch classes"]


def cross_entropy(logits: Logits, targets: Float[Array, "batch classes"]) -> Float[Array, "batch"]:
    """Cost of soft targets, in nats per image.

        l[i] = - sum_c t[i, c] log softmax(z[i])[c]

    >>> round(cross_entropy(jnp.zeros((1, 4)), jnp.eye(4)[:1]).item(), 4)
    1.3863
    """
    return -(targets * jax.nn.log_softmax(logits)).sum(axis=-1)


def in_top(logits: Logits, labels: Int[Array, "batch"], k: int) -> Float[Array, "batch"]:
    """One where the label is among the k largest logits; ties count against it.

    >>> in_top(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([2]), k=1).tolist()
    [0.0]
    >>> in_top(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([2]), k=2).tolist()
    [1.0]
    """
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    # A constant output must not count as right; hence >=, which includes the label itself.
    return ((logits >= own).sum(axis=-1) <= k).astype(jnp.float32)

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
    """One where the label is among the k largest logits; ties and what is no number do not.

    >>> in_top(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([2]), k=1).tolist()
    [0.0]
    >>> in_top(jnp.array([[1.0, 3.0, 2.0]]), jnp.array([2]), k=2).tolist()
    [1.0]
    """
    own = jnp.take_along_axis(logits, labels[:, None], axis=-1)
    # A constant output must not count as right; so the label is among what is not less. Nothing
    # is less than what is no number.
    return ((~(logits < own)).sum(axis=-1) <= k).astype(jnp.float32)


def divergence(student: Logits, teacher: Logits, temperature: float = 1.0) -> Float[Array, "batch"]:
    """How far a student's distribution is from its teacher's, in nats per image.

        l[i] = sum_c p[c] (log p[c] - log q[c]),  p = softmax(teacher / T), q = softmax(student / T)

    Zero where both agree up to a constant; no factor T^2.
    Source: docs/numerics.md#distillation

    >>> divergence(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [0.0]
    """
    wanted = jax.nn.log_softmax(teacher / temperature)
    found = jax.nn.log_softmax(student / temperature)
    return (jnp.exp(wanted) * (wanted - found)).sum(axis=-1)


def token_distance(
    student: Float[Array, "batch token width"], teacher: Float[Array, "batch token width"]
) -> Float[Array, "batch"]:
    """Mean square difference of two images' tokens.

        l[i] = mean over tokens and width of (s - t)^2

    The paper writes an l2 distance; its authors train with this mean, whose size
    does not depend on the shape of the network.
    Source: docs/numerics.md#distillation

    >>> token_distance(jnp.ones((1, 2, 3)), jnp.full((1, 2, 3), 3.0)).tolist()
    [4.0]
    """
    return jnp.square(student - teacher).mean(axis=(1, 2))

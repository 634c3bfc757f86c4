"""Data parallelism: batches split over every device, parameters copied to each."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.experimental.shard_map import shard_map
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from mpcvit.artifacts.config import DistributedConfig, Precision
from mpcvit.errors import UserError

CPU_PIECE = 8
DTYPES = {Precision.FLOAT32: jnp.float32, Precision.BFLOAT16: jnp.bfloat16}


def join_hosts(config: DistributedConfig) -> None:
    """Meet the other hosts of a run; nothing to do on one host."""
    if config.processes > 1:
        # Only hosts without accelerators use it; they cannot reduce over a network otherwise.
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(config.coordinator, config.processes, config.process)


class Devices:
    """All devices of a run as one line; hosts hold neighbouring parts of a batch."""

    def __init__(self) -> None:
        self.mesh = Mesh(np.array(jax.devices()), ("batch",))
        self.split = NamedSharding(self.mesh, PartitionSpec("batch"))
        self.copied = NamedSharding(self.mesh, PartitionSpec())

    @property
    def count(self) -> int:
        return self.mesh.size

    @property
    def is_writer(self) -> bool:
        """Whether this host writes the run's files."""
        return jax.process_index() == 0

    def wait_for_writer(self) -> None:
        """Let every host see what one of them has written."""
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("written")

    def require_divisible(self, batch_size: int, key: str) -> None:
        if batch_size % self.count:
            raise UserError(
                f"'{key}' ({batch_size}) must be divisible by the number of devices ({self.count})"
            )

    def piece_size(self, images: int, wanted: int) -> int:
        """Return how many images a piece has, into which a device cuts its part of a batch.

        Activations of a few images stay in a CPU's caches; accelerators want them all.
        """
        if wanted == 0:
            wanted = CPU_PIECE if self.mesh.devices[0].platform == "cpu" else images
        return max(size for size in range(1, images + 1) if size <= wanted and images % size == 0)

    def on_each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Run a function on every device; only its fourth argument is split among them.

        All devices must return the same.
        """
        copied, split = self.copied.spec, self.split.spec
        return shard_map(
            function,
            mesh=self.mesh,
            in_specs=(copied, copied, copied, split),
            out_specs=copied,
            check_rep=False,
        )

    def index(self) -> Any:
        """Return the number of the device, within `on_each`."""
        return jax.lax.axis_index("batch")

    def sum(self, tree: Any) -> Any:
        """Return the sum over devices, within `on_each`; in one message, as each makes all wait."""
        line, restore = ravel_pytree(tree)
        return restore(jax.lax.psum(line, "batch"))

    def from_local(self, arrays: Any) -> Any:
        """Join the parts of a batch that the hosts hold into global arrays."""
        return jax.tree.map(
            lambda part: jax.make_array_from_process_local_data(self.split, part), arrays
        )

    def from_whole(self, arrays: Any) -> Any:
        """Split a batch that every host holds a copy of."""
        return jax.tree.map(
            lambda whole: jax.make_array_from_callback(
                whole.shape, self.split, lambda index: whole[index]
            ),
            arrays,
        )

    def copy(self, tree: Any) -> Any:
        """Put the same values on every device."""
        return self.jit(lambda x: x)(tree)

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compile for all devices; each gets a copy of the result."""
        copied: Any = self.copied  # jax.jit's annotation knows no shardings
        return jax.jit(function, out_shardings=copied, **options)

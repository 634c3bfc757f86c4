"""How the cores of this machine are shared, set before JAX or SPU is imported."""

import os

_FLAG = "--xla_force_host_platform_device_count"
MOST = 8
THREADS_VARIABLE = "OMP_THREAD_LIMIT"
_MOST_THREADS = 4  # of one matrix product, fixed in SPU


def split_cpu(batch_size: int) -> None:
    """Let JAX see the CPU's cores as devices that share every batch.

    XLA runs much of a small network on one core; a device per core keeps all
    of them busy. Accelerators are not affected, and a count that the user has
    set in XLA_FLAGS stays.

    >>> [devices_for(batch, cores=4) for batch in (128, 6, 7)]
    [4, 3, 1]
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _FLAG not in flags:
        count = devices_for(batch_size, cores=len(os.sched_getaffinity(0)))
        os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={count}".strip()


def devices_for(batch_size: int, cores: int) -> int:
    """Return the largest number of devices that divides a batch, up to one per core."""
    return max(n for n in range(1, min(cores, MOST) + 1) if batch_size % n == 0)


def threads_of_party(parties: int, cores: int | None = None) -> int:
    """Return how many threads a party's matrix products may use.

    SPU starts four threads for each product. Threads without a core of their own wait
    by spinning, and slow down the party that they work for. `parties` of them share
    this machine's cores.

    >>> [threads_of_party(2, cores) for cores in (1, 2, 4, 64)]
    [1, 1, 2, 4]
    """
    cores = cores or len(os.sched_getaffinity(0))
    return max(1, min(_MOST_THREADS, cores // parties))

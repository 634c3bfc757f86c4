"""Strictness for every test, and how the workers share what is slow."""

import gc
import os
import sys

# Several devices, so that sharding is tested where there is only a CPU; and little
# optimisation, as small programs spend their time in the compiler. In one piece they are
# compiled faster than in many.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
)

import jax
import pytest
from hypothesis import settings

# JAX reads the flags once, with its devices. The last one would end a process of SPU, which
# does not know it.
jax.devices()
os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].rpartition(" ")[0]

# Two workers and the parties that they start have the cores already: a pool of threads for
# each of them waits by spinning, and takes the cores from those that compute.
for pool in ("OPENBLAS_NUM_THREADS", "OMP_THREAD_LIMIT"):
    os.environ.setdefault(pool, "1")
# Tests start this package in hundreds of processes, and only the first has to compile it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

TRAINING = {"train", "search", "experiments", "cli"}  # folders whose tests compile the same steps

# Time limits per example say more about a shared machine than about the code.
settings.register_profile("mpcvit", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("mpcvit")


def pytest_collection_finish():
    """Leave what is there for good out of later collections, and rarely look at all the rest.

    What JAX traces is many small objects, and the search for garbage took a seventh of the time.
    Young objects are looked at as often as ever: cycles of them may hold open files.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory):
    """What the package keeps between runs stays inside the test run."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPCVIT_CACHE", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder.with_name("state")))
        yield folder


@pytest.fixture(autouse=True, scope="session")
def few_images_at_a_time():
    """Lowering takes images in batches: small networks are traced longer than computed."""
    with pytest.MonkeyPatch.context() as patch:
        for room in ("calibrate", "program"):
            patch.setattr(f"mpcvit.lowering.{room}._BATCH", 4)
        yield


@pytest.fixture(autouse=True, scope="module")
def compiled_programs(request, tmp_path_factory):
    """Compile each program once for all tests that train."""
    if request.path.parent.name not in TRAINING:
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    from tests.training import make_step_once

    folder = tmp_path_factory.getbasetemp() / "compiled"
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mpcvit.train.loop.make_step", make_step_once)
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.fixture
def drawn(monkeypatch):
    """Return the list of figures that are saved, so that tests judge them by their content."""
    from matplotlib.figure import Figure

    figures, save = [], Figure.savefig

    def note(figure, *arguments, **settings):
        figures.append(figure)
        save(figure, *arguments, **settings)

    monkeypatch.setattr(Figure, "savefig", note)
    return figures

"""Tests that train compile the same small programs many times."""

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

TRAINING = {"train", "search", "experiments"}


@pytest.fixture(autouse=True, scope="module")
def compiled_programs(request, tmp_path_factory):
    """Compile each program once for all tests that train."""
    if request.path.parent.name not in TRAINING:
        yield
        return
    folder = tmp_path_factory.getbasetemp() / "compiled"
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()

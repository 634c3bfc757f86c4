"""Strictness for every test."""

import os

# Several devices, so that sharding is tested where there is only a CPU; and little
# optimisation, as small programs spend their time in the compiler.
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true"
)

import pytest
from hypothesis import settings

# Time limits per example say more about a shared machine than about the code.
settings.register_profile("mpcvit", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("mpcvit")


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory):
    """What the package keeps between runs stays inside the test run."""
    folder = tmp_path_factory.getbasetemp() / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPCVIT_CACHE", str(folder))
        patch.setenv("XDG_STATE_HOME", str(folder.with_name("state")))
        yield folder


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

"""Shell completion: what an argument may be. Nothing here imports JAX.

A function returns nothing for what it does not know, and the shell then completes files.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from mpcvit.artifacts.config import ModelConfig, load_config
from mpcvit.artifacts.provenance import MODEL_FILE, SEARCH_FILE, STATE_FILE
from mpcvit.artifacts.shipped import CONFIGS, PROFILES, shipped_names

_RUNS = Path("runs")
_DEEPEST = 4  # as runs/CONFIG/ROW/seed-0-epochs-24
_MOST = 200


def _one_of(names: Callable[[], Iterable[str | Path]]) -> Callable[[str], list[str]]:
    def begin(incomplete: str) -> list[str]:
        return [name for name in map(str, names()) if name.startswith(incomplete)][:_MOST]

    return begin


def _several_of(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Complete the last of several names between commas.

    >>> _several_of(lambda: ["relu_softmax", "scaling"])("scaling,rel")
    ['scaling,relu_softmax']
    """

    def begin(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        return [before + comma + name for name in _one_of(names)(last)]

    return begin


def _experiments() -> Iterator[str]:
    from mpcvit.experiments.catalogue import EXPERIMENTS

    return (experiment.name for experiment in EXPERIMENTS)


def _paper_networks() -> Iterable[str]:
    from mpcvit.bench.networks import paper_networks

    return paper_networks(_paper_model())


def _networks_as_written() -> Iterable[str]:
    from mpcvit.bench.networks import networks_as_written

    return networks_as_written(_paper_model())


def _paper_model() -> ModelConfig:
    return load_config(CONFIGS / "cifar10.toml").model


def _run_folders(*files: str) -> Iterator[Path]:
    """Give the folders below runs/ that hold one of some files."""
    return (folder for folder in _folders() if any((folder / name).exists() for name in files))


def _checkpoints() -> Iterator[Path]:
    yield from sorted(Path().glob("*.safetensors"))
    yield from (folder / MODEL_FILE for folder in _run_folders(MODEL_FILE))


def _programs() -> Iterator[Path]:
    yield from (path.parent for path in sorted(Path().glob("*/program.json")))
    yield from _run_folders("program.json")


def _folders(within: Path = _RUNS, depth: int = 1) -> Iterator[Path]:
    """Give the folders of runs, not too deep, as the shell waits."""
    if not within.is_dir():
        return
    for folder in sorted(entry for entry in within.iterdir() if entry.is_dir()):
        yield folder
        if depth < _DEEPEST:
            yield from _folders(folder, depth + 1)


profile = _one_of(partial(shipped_names, PROFILES))
profiles = _several_of(partial(shipped_names, PROFILES))
config = _one_of(partial(shipped_names, CONFIGS))
experiment = _one_of(_experiments)
network = _one_of(_paper_networks)
networks = _several_of(_paper_networks)
networks_as_written = _several_of(_networks_as_written)
run_folder = _one_of(partial(_run_folders, MODEL_FILE, SEARCH_FILE, STATE_FILE))
search_folder = _one_of(partial(_run_folders, SEARCH_FILE))
checkpoint = _one_of(_checkpoints)
program = _one_of(_programs)
model = _one_of(lambda: chain(_checkpoints(), _programs()))

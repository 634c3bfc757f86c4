"""Shell completion: what an argument may be. Nothing here imports JAX.

A function returns nothing for what it does not know, and the shell then completes files.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from mpcvit.artifacts.config import ModelConfig, load_config
from mpcvit.artifacts.provenance import MODEL_FILE, SEARCH_FILE, STATE_FILE
from mpcvit.artifacts.shipped import CONFIGS, PROFILES, shipped_names

_RUNS = Path("runs")
_DEEPEST = 4  # as runs/CONFIG/ROW/seed-0-epochs-24
_MOST = 200


def profile(incomplete: str) -> list[str]:
    """Return the profiles that come with the package."""
    return _begin(incomplete, shipped_names(PROFILES))


def profiles(incomplete: str) -> list[str]:
    """Return profiles for a list between commas."""
    return _begin_last(incomplete, shipped_names(PROFILES))


def config(incomplete: str) -> list[str]:
    """Return the configurations that come with the package."""
    return _begin(incomplete, shipped_names(CONFIGS))


def experiment(incomplete: str) -> list[str]:
    """Return the experiments."""
    from mpcvit.experiments.catalogue import EXPERIMENTS

    return _begin(incomplete, (experiment.name for experiment in EXPERIMENTS))


def network(incomplete: str) -> list[str]:
    """Return the networks of the paper."""
    from mpcvit.bench.networks import paper_networks

    return _begin(incomplete, paper_networks(_paper_model()))


def networks(incomplete: str) -> list[str]:
    """Return networks of the paper for a list between commas."""
    from mpcvit.bench.networks import paper_networks

    return _begin_last(incomplete, paper_networks(_paper_model()))


def networks_as_written(incomplete: str) -> list[str]:
    """Return networks that are not lowered for a list between commas."""
    from mpcvit.bench.networks import networks_as_written

    return _begin_last(incomplete, networks_as_written(_paper_model()))


def run_folder(incomplete: str) -> list[str]:
    """Return the folders below runs/ that hold a training or a search."""
    return _begin(incomplete, _shown(_run_folders()))


def search_folder(incomplete: str) -> list[str]:
    """Return the folders below runs/ that hold a search."""
    return _begin(incomplete, _shown(f for f in _run_folders() if (f / SEARCH_FILE).exists()))


def checkpoint(incomplete: str) -> list[str]:
    """Return checkpoints of this folder and of the runs."""
    return _begin(incomplete, _shown(_checkpoints()))


def model(incomplete: str) -> list[str]:
    """Return checkpoints, and folders of lowered programs."""
    return _begin(incomplete, _shown((*_checkpoints(), *_programs())))


def program(incomplete: str) -> list[str]:
    """Return folders of lowered programs."""
    return _begin(incomplete, _shown(_programs()))


def _paper_model() -> ModelConfig:
    return load_config(CONFIGS / "cifar10.toml").model


def _run_folders() -> Iterator[Path]:
    files = (MODEL_FILE, SEARCH_FILE, STATE_FILE)
    return (folder for folder in _folders() if any((folder / name).exists() for name in files))


def _checkpoints() -> Iterator[Path]:
    yield from sorted(Path().glob("*.safetensors"))
    yield from (folder / MODEL_FILE for folder in _folders() if (folder / MODEL_FILE).exists())


def _programs() -> Iterator[Path]:
    nearby = sorted(Path().glob("*/program.json"))
    return (
        folder
        for folder in (*(path.parent for path in nearby), *_folders())
        if (folder / "program.json").exists()
    )


def _folders(within: Path = _RUNS, depth: int = 1) -> Iterator[Path]:
    """Give the folders of runs, not too deep, as the shell waits."""
    if not within.is_dir():
        return
    for folder in sorted(entry for entry in within.iterdir() if entry.is_dir()):
        yield folder
        if depth < _DEEPEST:
            yield from _folders(folder, depth + 1)


def _shown(paths: Iterable[Path]) -> Iterator[str]:
    return (str(path) for path in paths)


def _begin(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)][:_MOST]


def _begin_last(incomplete: str, names: Iterable[str]) -> list[str]:
    """Complete the last of several names between commas.

    >>> _begin_last("scaling,rel", ["relu_softmax", "scaling"])
    ['scaling,relu_softmax']
    """
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _begin(last, names)]

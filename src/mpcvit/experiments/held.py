"""How much of each experiment there is: rows and seeds in a folder of results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpcvit.artifacts.provenance import read_rows
from mpcvit.errors import UserError
from mpcvit.experiments.catalogue import Experiment


@dataclass(frozen=True, kw_only=True)
class Held:
    """The rows of an experiment that one folder of results holds, with the seeds of each."""

    folder: str
    seeds: dict[str, int]  # by row
    epochs: tuple[int, ...]

    @property
    def fewest_seeds(self) -> int:
        return min(self.seeds.values())

    @property
    def most_seeds(self) -> int:
        return max(self.seeds.values())


def held_rows(experiment: Experiment, results: Path) -> tuple[Held, ...]:
    """Return what the folders below `results` hold of an experiment, in order of their names."""
    name = f"{experiment.name}-runs.csv" if experiment.networks else f"{experiment.name}.csv"
    label = "network" if experiment.networks else "search"
    found = []
    for path in sorted(results.glob(f"*/{name}")):
        rows = _read(path, (label, "seed", "epochs"))
        known = [row for row in rows if row[label] in experiment.row_names]
        seeds = {
            row: len({one["seed"] for one in known if one[label] == row})
            for row in experiment.row_names
            if any(one[label] == row for one in known)
        }
        if seeds:
            epochs = tuple(sorted({int(row["epochs"]) for row in known}))
            found.append(Held(folder=path.parent.name, seeds=seeds, epochs=epochs))
    return tuple(found)


def _read(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    rows = read_rows(path)
    for row in rows:
        if any(not row.get(column) for column in columns):
            raise UserError(f"{path} is not a table of runs: it needs {', '.join(columns)}")
    return rows

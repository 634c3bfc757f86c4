"""What the paper published, for the same rows."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mpcvit.config import read_toml


@dataclass(frozen=True, kw_only=True)
class Published:
    """A figure of the paper; None where it gives none."""

    top1: float | None = None
    latency_s: float | None = None


def published(config_name: str, experiment: str, row: str) -> Published:
    """The paper's figures for a row, by the data set that the configuration's name begins with.

    >>> published("cifar10-small", "trade-off", "softmax").top1
    93.97
    >>> published("digits", "trade-off", "softmax").top1 is None
    True
    """
    for data in ("cifar100", "cifar10", "tiny-imagenet"):
        if config_name.startswith(data):
            return Published(**_table()[data].get(experiment, {}).get(row, {}))
    return Published()


@cache
def _table() -> dict[str, Any]:
    return read_toml(Path(__file__).with_name("published.toml"), "table of published figures")

"""What the paper published, for the same rows."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mpcvit.codec import read_toml
from mpcvit.report.charts.trade_off import TradeOff


@dataclass(frozen=True, kw_only=True)
class Published:
    """A figure of the paper; None where it gives none."""

    top1: float | None = None
    latency_s: float | None = None


def published(config_name: str, experiment: str, row: str) -> Published:
    """Return the paper's values for a row, by the data set of a configuration's name.

    >>> published("cifar10-small", "trade-off", "softmax").top1
    93.97
    >>> published("digits", "trade-off", "softmax").top1 is None
    True
    """
    for data in ("cifar100", "cifar10", "tiny-imagenet"):
        if config_name.startswith(data):
            values = published_table()[data].get(experiment, {}).get(row, {})
            return Published(**{name: value for name, (value, _) in values.items()})
    return Published()


def published_trade_offs() -> list[TradeOff]:
    """Return the paper's networks of known accuracy and latency."""
    names: dict[tuple[str, str], TradeOff] = {}
    for data, experiments in published_table().items():
        for experiment in ("trade-off", "mpcvit-plus", "head-pruning"):
            for network, found in experiments.get(experiment, {}).items():
                if {"top1", "latency_s"} <= found.keys():
                    point = TradeOff(
                        data=data,
                        network=network,
                        top1=found["top1"][0],
                        seconds=found["latency_s"][0],
                        origin="published",
                        facts={
                            "from": "the MPCViT paper: SPU 0.3.1b0, SEMI-2K, Xeon 2.40 GHz",
                            "source": ", ".join(
                                dict.fromkeys(source for _, source in found.values())
                            ),
                        },
                    )
                    names.setdefault((data, network), point)
    return list(names.values())


@cache
def published_table() -> dict[str, Any]:
    """Return each published value with its source, by data set, experiment, row and name."""
    return read_toml(Path(__file__).with_name("published.toml"), "table of published figures")

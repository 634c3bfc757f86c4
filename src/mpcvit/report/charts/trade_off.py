"""Accuracy against seconds: ours by modelled and measured seconds, and the paper's."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mpcvit.report.charts.chart import (
    BarChart,
    BarSeries,
    Chart,
    Origin,
    Point,
    Series,
    XYChart,
    hues,
    number,
    slug,
)
from mpcvit.report.collect import Collected, Named, Table, TableKind
from mpcvit.report.networks import NetworkRow

X_LABEL, Y_LABEL = "seconds of a private inference", "top-1 accuracy (%)"


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """A network's accuracy in percent and its seconds, with their origin."""

    data: str  # the data set, by the first word of a configuration's name
    network: str
    top1: float
    seconds: float
    origin: Origin
    config: str = ""
    form: str = "plain"  # or "lowered"
    low: float | None = None
    high: float | None = None
    facts: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of_network(cls, row: NetworkRow, name: str, config: str) -> "Iterator[TradeOff]":
        """Yield a trained network, unless its accuracy is unknown."""
        if row.top1 is not None:
            yield cls(
                data=data_of(config),
                network=name,
                config=config,
                top1=100 * row.top1,
                seconds=row.modelled_s,
                origin="modelled",
                facts={
                    "heads": row.heads,
                    "exchanges": f"{row.exchanges:,.0f}",
                    "MB sent": f"{row.sent_mb:,.1f}",
                    "seconds by": row.latency_source,
                },
            )

    def to_point(self) -> Point:
        label = self.network if self.form == "plain" else f"{self.network}, {self.form}"
        return Point(
            x=self.seconds,
            y=self.top1,
            label=label,
            low=self.low,
            high=self.high,
            facts=self.facts,
        )


def charts(collected: Collected, published: Sequence[TradeOff]) -> list[Chart]:
    """Return a chart for each data set, with the paper's points where it has that data set."""
    # what tells more of the same network comes later, and takes its place
    found = {(t.config, t.network, t.form, t.origin): t for t in _collect(collected)}
    # the clock's seconds of a network take the place of modelled ones
    ours = [
        one
        for (*which, origin), one in found.items()
        if origin == "measured" or (*which, "measured") not in found
    ]
    return [
        *(
            trade_off_chart(data, [one for one in ours if one.data == data], published)
            for data in dict.fromkeys(one.data for one in ours)
        ),
        *(_accuracies(table) for table in collected.tables_of(TableKind.SUMMARY)),
    ]


def data_of(config: str) -> str:
    """Return the data set that a configuration's name begins with.

    >>> data_of("cifar10-tiny"), data_of("tiny-imagenet"), data_of("")
    ('cifar10', 'tiny-imagenet', 'unnamed data')
    """
    if config.startswith("tiny-imagenet"):
        return "tiny-imagenet"
    return config.split("-")[0] or "unnamed data"


def family(network: str) -> str:
    """Return a network's name without its ratio or budget: what a line joins.

    >>> family("mpcvit-0.3-distilled"), family("mpcvit-12s"), family("softmax")
    ('mpcvit-distilled', 'mpcvit', 'softmax')
    """
    return re.sub(r"-\d+(\.\d+)?s?(?=-|$)", "", network)


def trade_off_chart(
    data: str, ours: Sequence[TradeOff], published: Sequence[TradeOff] = ()
) -> XYChart:
    """Return accuracy against seconds, with a line for each family of networks."""
    paper = [one for one in published if one.data == data]
    several = len({one.config for one in ours}) > 1
    groups: dict[tuple[str, Origin], list[TradeOff]] = {}
    for one in (*ours, *paper):
        name = family(one.network)
        if one.form != "plain":
            name += f", {one.form}"
        if several and one.config:
            name += f" ({one.config})"
        groups.setdefault((name, one.origin), []).append(one)
    colours = hues([family(one.network) for one in (*ours, *paper)])
    series = [
        Series(
            name=f"{name}, {origin}",
            points=tuple(one.to_point() for one in sorted(members, key=lambda one: one.seconds)),
            origin=origin,
            hue=colours[family(members[0].network)],
            dashed=origin == "published" or members[0].form != "plain",
        )
        for (name, origin), members in groups.items()
    ]
    caption = "Up and left is better. Every line joins networks of one kind at several ratios."
    if paper:
        caption += (
            " Hollow and dashed: published by the paper, with its networks, training and hardware;"
            " to compare with, not results of these runs."
        )
    return XYChart(
        id=slug(f"trade-off {data}"),
        title=f"Accuracy against latency on {data}",
        caption=caption,
        x_label=X_LABEL,
        y_label=Y_LABEL,
        series=(*series, *_front(ours)),
        labelled=True,
    )


def _front(ours: Sequence[TradeOff]) -> Iterator[Series]:
    """Yield the networks that none beats in both; seconds of two origins are not compared."""
    origins: list[Origin] = [one.origin for one in ours] or ["modelled"]
    origin = max(origins, key=origins.count)
    judged = sorted(
        (one for one in ours if one.origin == origin),
        key=lambda one: (one.seconds, -one.top1),
    )
    best: list[TradeOff] = []
    for one in judged:
        if not best or one.top1 > best[-1].top1:
            best.append(one)
    if 2 <= len(best) < len(judged):
        yield Series(
            name=f"best trade-offs, {origin}",
            points=tuple(one.to_point() for one in best),
            origin=origin,
            hue=-1,
            marked=False,
        )


def _accuracies(table: Named[Table]) -> BarChart:
    """Return the accuracy of each network of an experiment with its interval."""
    rows = [row for row in table.value.rows if number(row["top1_mean"]) is not None]
    return BarChart(
        id=slug(f"accuracy {table.name}"),
        title=f"Accuracy of each network, {table.name}",
        caption="Means with 95 % intervals: over seeds, or over test images if there is one seed.",
        value_label=Y_LABEL,
        categories=tuple(row["network"] for row in rows),
        series=(
            BarSeries(
                name="trained here",
                values=tuple(float(row["top1_mean"]) for row in rows),
                origin="trained",
                intervals=tuple((float(row["top1_low"]), float(row["top1_high"])) for row in rows),
            ),
        ),
    )


def _collect(collected: Collected) -> Iterator[TradeOff]:
    for network in collected.networks:
        yield from TradeOff.of_network(network.value.row, network.name, network.value.config)
    summaries = collected.tables_of(TableKind.SUMMARY)
    for table in summaries:
        for row in table.value.rows:
            facts = {"95 % interval over": "interval", "seeds": "seeds"}
            facts |= {"exchanges": "exchanges", "MB sent": "sent_mb"}
            yield from _of_row(row, "top1_mean", "modelled", facts, table.path.parent.name)
    summarised = {table.path.with_suffix("") for table in summaries}
    for table in collected.tables_of(TableKind.RUNS):
        if table.path.with_name(table.path.stem.removesuffix("-runs")) not in summarised:
            for row in table.value.rows:
                yield from _of_row(row, "top1", "modelled", {"seed": "seed", "heads": "heads"})
    for table in collected.tables_of(TableKind.PIPELINE):
        for row in table.value.rows:
            facts = {"exchanges": "exchanges", "MB sent": "sent_mb", "images at a time": "batch"}
            for origin in ("measured", "modelled"):
                yield from _of_row(row, "top1", origin, facts)


def _of_row(
    row: Mapping[str, Any], column: str, origin: Origin, facts: Mapping[str, str], config: str = ""
) -> Iterator[TradeOff]:
    """Yield a row of a table, unless its accuracy or its seconds are unknown."""
    top1, seconds = number(row[column]), number(row.get(f"{origin}_s"))
    config = config or row.get("config", "")
    if top1 is not None and seconds is not None:
        yield TradeOff(
            data=data_of(config),
            network=row["network"],
            config=config,
            form=row.get("form", "plain"),
            top1=top1,
            seconds=seconds,
            origin=origin,
            low=number(row.get("top1_low")),
            high=number(row.get("top1_high")),
            facts={name: row.get(source) or "" for name, source in facts.items()},
        )

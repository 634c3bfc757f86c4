"""Accuracy against seconds: ours by modelled and measured seconds, and the paper's."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mpcvit.report.charts.chart import Origin, Point, Series, XYChart, hues, slug
from mpcvit.report.findings import Findings, Named, Table, TableKind

X_LABEL, Y_LABEL = "seconds of a private inference", "top-1 accuracy (%)"


@dataclass(frozen=True, kw_only=True)
class TradeOff:
    """A network's accuracy in percent and its seconds, with where they come from."""

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


def charts(findings: Findings, published: Sequence[TradeOff]) -> list[XYChart]:
    """A chart for each data set, with the paper's points where it has that data set."""
    # what tells more of the same network comes later, and takes its place
    own = list({(o.config, o.network, o.form, o.origin): o for o in _found(findings)}.values())
    return [
        _chart(data, [one for one in own if one.data == data], published)
        for data in dict.fromkeys(one.data for one in own)
    ]


def data_of(config: str) -> str:
    """
    >>> data_of("cifar10-tiny"), data_of("tiny-imagenet"), data_of("")
    ('cifar10', 'tiny-imagenet', 'unnamed data')
    """
    if config.startswith("tiny-imagenet"):
        return "tiny-imagenet"
    return config.split("-")[0] or "unnamed data"


def family(network: str) -> str:
    """A network's name without its ratio or budget: what a line joins.

    >>> family("mpcvit-0.3-distilled"), family("mpcvit-12s"), family("softmax")
    ('mpcvit-distilled', 'mpcvit', 'softmax')
    """
    return re.sub(r"-\d+(\.\d+)?s?(?=-|$)", "", network)


def _chart(data: str, own: list[TradeOff], published: Sequence[TradeOff]) -> XYChart:
    paper = [one for one in published if one.data == data]
    several = len({one.config for one in own}) > 1
    groups: dict[tuple[str, Origin], list[TradeOff]] = {}
    for one in (*own, *paper):
        name = family(one.network)
        if one.form != "plain":
            name += f", {one.form}"
        if several and one.config:
            name += f" ({one.config})"
        groups.setdefault((name, one.origin), []).append(one)
    colours = hues([family(one.network) for one in (*own, *paper)])
    series = [
        Series(
            name=f"{name}, {origin}",
            points=tuple(_point(one) for one in sorted(members, key=lambda one: one.seconds)),
            origin=origin,
            hue=colours[family(members[0].network)],
            dashed=origin == "published" or members[0].form != "plain",
        )
        for (name, origin), members in groups.items()
    ]
    front = _front(own)
    if front is not None:
        series.append(front)
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
        series=tuple(series),
        labelled=True,
    )


def _point(one: TradeOff) -> Point:
    label = one.network if one.form == "plain" else f"{one.network}, {one.form}"
    return Point(
        x=one.seconds, y=one.top1, label=label, low=one.low, high=one.high, facts=one.facts
    )


def _front(own: list[TradeOff]) -> Series | None:
    """Networks that none beats in both, among those whose seconds were modelled alike."""
    judged = sorted(
        (one for one in own if one.origin == "modelled"),
        key=lambda one: (one.seconds, -one.top1),
    )
    best: list[TradeOff] = []
    for one in judged:
        if not best or one.top1 > best[-1].top1:
            best.append(one)
    if len(best) < 2 or len(judged) == len(best):
        return None
    return Series(
        name="best trade-offs, modelled",
        points=tuple(_point(one) for one in best),
        origin="modelled",
        hue=-1,
        marked=False,
    )


def _found(findings: Findings) -> Iterator[TradeOff]:
    for found in findings.networks:
        row = found.held.row
        if row.top1 is None:
            continue
        yield TradeOff(
            data=data_of(found.held.config),
            network=found.name,
            config=found.held.config,
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
    summaries = findings.tables_of(TableKind.SUMMARY)
    for table in summaries:
        yield from _of_summary(table)
    told = {table.place.with_suffix("") for table in summaries}
    for table in findings.tables_of(TableKind.RUNS):
        if table.place.with_name(table.place.stem.removesuffix("-runs")) not in told:
            yield from _of_runs(table)
    for table in findings.tables_of(TableKind.PIPELINE):
        yield from _of_pipeline(table)


def _of_summary(table: Named[Table]) -> Iterator[TradeOff]:
    config = table.place.parent.name
    for row in table.held.rows:
        if row["top1_mean"] in ("", "fail"):
            continue
        yield TradeOff(
            data=data_of(config),
            network=row["network"],
            config=config,
            top1=float(row["top1_mean"]),
            seconds=float(row["modelled_s"]),
            origin="modelled",
            low=number(row.get("top1_low")),
            high=number(row.get("top1_high")),
            facts={
                "95 % interval over": row.get("interval", ""),
                "seeds": row.get("seeds", ""),
                "exchanges": row.get("exchanges", ""),
                "MB sent": row.get("sent_mb", ""),
            },
        )


def _of_runs(table: Named[Table]) -> Iterator[TradeOff]:
    for row in table.held.rows:
        if row["top1"] in ("", "fail"):
            continue
        config = row.get("config", "")
        yield TradeOff(
            data=data_of(config),
            network=row["network"],
            config=config,
            top1=float(row["top1"]),
            seconds=float(row["modelled_s"]),
            origin="modelled",
            facts={"seed": row["seed"], "heads": row.get("heads", "")},
        )


def _of_pipeline(table: Named[Table]) -> Iterator[TradeOff]:
    """Seconds measured, and modelled from what the very same runs counted."""
    for row in table.held.rows:
        top1 = number(row["top1"])
        for origin in ("measured", "modelled"):
            seconds = number(row.get(f"{origin}_s"))
            if top1 is None or seconds is None:
                continue
            yield TradeOff(
                data=data_of(row["config"]),
                network=row["network"],
                config=row["config"],
                form=row["form"],
                top1=top1,
                seconds=seconds,
                origin=origin,
                facts={
                    "exchanges": row["exchanges"],
                    "MB sent": row["sent_mb"],
                    "images at a time": row.get("batch") or "1",
                },
            )


def number(text: str | None) -> float | None:
    """A table's number, or None where it has none.

    >>> number("1.5"), number(""), number("fail")
    (1.5, None, None)
    """
    try:
        return float(text or "")
    except ValueError:
        return None

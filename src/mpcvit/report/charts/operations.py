"""Where the cost lies, by operation: of private runs, and of a block and of softmax by parts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from mpcvit.artifacts.record import OperationCost, RunRecord
from mpcvit.report.charts.chart import BarChart, BarSeries, Origin, number, slug
from mpcvit.report.charts.layers import named_records
from mpcvit.report.collect import Collected, TableKind

_MOST = 7  # operations with a colour of their own

_MEASURES: tuple[tuple[str, str, str, Callable[[OperationCost], float]], ...] = (
    ("exchanges", "Exchanges by operation", "exchanges", lambda one: one.exchanges),
    ("bytes", "Bytes by operation", "MB sent", lambda one: one.sent_bytes / 1e6),
    ("seconds", "Measured seconds by operation", "seconds", lambda one: one.seconds),
)


def charts(collected: Collected) -> list[BarChart]:
    return [*_of_records(collected), *_of_tables(collected)]


def _of_records(collected: Collected) -> list[BarChart]:
    found, records = [], named_records(collected)
    totals_of = {
        id: {
            name: _by_operation(
                record, measure, len(record.batches) if id == "exchanges" else record.images
            )
            for name, record in records.items()
            if record.was_timed or id != "seconds"
        }
        for id, _, _, measure in _MEASURES
    }
    largest = _largest(totals_of.values())
    for id, title, label, _ in _MEASURES:
        timed, shared, totals = id == "seconds", id == "exchanges", totals_of[id]
        totals = dict(sorted(totals.items(), key=lambda one: -sum(one[1].values())))
        if not any(sum(total.values()) for total in totals.values()):
            continue
        caption = "For the images that run at a time" if shared else "For one image"
        caption += ", as SPU counted it at the party that holds the images."
        if timed:
            caption += " By the wall clock, with waiting for the peer."
        found.append(
            BarChart(
                id=f"operation-{id}",
                title=title,
                caption=caption,
                value_label=label,
                categories=tuple(totals),
                series=_stack(list(totals.values()), largest, "measured" if timed else "counted"),
                stacked=True,
            )
        )
    return found


def _by_operation(
    record: RunRecord, measure: Callable[[OperationCost], float], parts: int
) -> dict[str, float]:
    total: dict[str, float] = {}
    for stage in record.stages:
        for operation in stage.operations:
            before = total.get(operation.name, 0.0)
            total[operation.name] = before + measure(operation) / parts
    return total


def _largest(measured: Iterable[Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the operations with the largest share of any measure: each has one colour in all."""
    shares: dict[str, float] = {}
    for totals in measured:
        whole = sum(sum(total.values()) for total in totals.values()) or 1.0
        own = Counter[str]()
        for total in totals.values():
            own.update(total)
        for name, value in own.items():
            shares[name] = max(shares.get(name, 0.0), value / whole)
    return sorted(shares, key=lambda name: -shares[name])[:_MOST]


def _stack(
    totals: Sequence[Mapping[str, float]], largest: Sequence[str], origin: Origin
) -> tuple[BarSeries, ...]:
    """Stack the most expensive operations each by itself, and the others together."""
    stacked = [
        BarSeries(
            name=name,
            values=tuple(total.get(name, 0.0) for total in totals),
            origin=origin,
            hue=place,
        )
        for place, name in enumerate(largest)
    ]
    rest = tuple(
        sum(value for name, value in total.items() if name not in largest) for total in totals
    )
    if any(rest):
        stacked.append(BarSeries(name="others", values=rest, origin=origin, hue=-1))
    return tuple(stacked)


def _of_tables(collected: Collected) -> list[BarChart]:
    """`mpcvit bench breakdown`: a chart for each of its tables and protocols."""
    found = []
    for table in collected.tables_of(TableKind.BREAKDOWN):
        groups: dict[tuple[str, str], list[dict[str, str]]] = {}
        for row in table.value.rows:
            groups.setdefault((row["table"], row.get("protocol", "")), []).append(row)
        for (what, protocol), rows in groups.items():
            measured = all(number(row.get("measured_s")) is not None for row in rows)
            column = "measured_s" if measured else "modelled_s"
            if all(number(row[column]) is None for row in rows):
                continue
            values = list(dict.fromkeys(row["value"] for row in rows))
            by_place = {(row["part"], row["value"]): number(row[column]) for row in rows}
            unit = what.removeprefix("block by ") if what.startswith("block by ") else ""
            found.append(
                BarChart(
                    id=slug(f"parts {what} {protocol}"),
                    title=f"{what[0].upper()}{what[1:]} by parts, {protocol}",
                    caption=f"{'Measured' if measured else 'Modelled'} seconds of each part; "
                    f"{rows[0].get('shape', '')}.",
                    value_label="seconds",
                    categories=tuple(f"{value} {unit}".strip() or what for value in values),
                    series=tuple(
                        BarSeries(
                            name=part,
                            values=tuple(by_place.get((part, value)) for value in values),
                            origin="measured" if measured else "modelled",
                            hue=place,
                        )
                        for place, part in enumerate(dict.fromkeys(row["part"] for row in rows))
                    ),
                    stacked=True,
                )
            )
    return found

"""Where the cost lies, by operation: of private runs, and of a block and of softmax by parts."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from mpcvit.artifacts.record import OperationCost, RunRecord
from mpcvit.report.charts.chart import (
    BarChart,
    BarSeries,
    Origin,
    hues,
    number,
    slug,
    stacked_chart,
)
from mpcvit.report.charts.layers import named_records
from mpcvit.report.collect import Collected, TableKind

_MOST, _REST = 7, "others"  # operations with a colour of their own, and all else

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
    largest = hues(_largest(totals_of.values()))
    for id, title, label, _ in _MEASURES:
        caption = "For the images that run at a time" if id == "exchanges" else "For one image"
        caption += ", as SPU counted it at the party that holds the images."
        if id == "seconds":
            caption += " By the wall clock, with waiting for the peer."
        bars = {name: _with_rest(total, largest) for name, total in totals_of[id].items()}
        origin: Origin = "measured" if id == "seconds" else "counted"
        colours = {**largest, _REST: -1}
        found += stacked_chart(f"operation-{id}", title, caption, label, bars, origin, colours)
    return found


def _with_rest(total: Mapping[str, float], largest: Mapping[str, int]) -> dict[str, float]:
    """Return the most expensive operations each by itself, and the others together."""
    kept = {name: value for name, value in total.items() if name in largest}
    return {**kept, _REST: sum(total[name] for name in total.keys() - kept.keys())}


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

"""Seconds and bytes of every layer."""

from collections.abc import Iterable, Iterator

from mpcvit.artifacts.latency import WAN
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.artifacts.record import RunRecord, StageCost
from mpcvit.report.charts.chart import Origin, XYChart, hues, line
from mpcvit.report.collect import Collected, TableKind

Line = tuple[str, Origin, list[tuple[int, float]]]


def charts(collected: Collected) -> list[XYChart]:
    seconds = (
        "Modelled seconds add up exchanges, bytes and computing for a network; measured ones are "
        "the wall clock between processes."
    )
    counted = "Counted by SPU at the party that holds the images, for one image."
    made = (
        ("layer-seconds", "Latency of each layer", seconds, "seconds", _seconds),
        ("layer-bytes", "Bytes of each layer", counted, "MB sent", _megabytes),
    )
    shapes = _shapes(collected)
    return [
        _chart(id, title, caption + shapes, label, lines)
        for id, title, caption, label, lines_of in made
        if (lines := list(lines_of(collected)))
    ]


def _chart(id: str, title: str, caption: str, label: str, lines: list[Line]) -> XYChart:
    colours = hues([name for name, _, _ in lines])
    return XYChart(
        id=id,
        title=title,
        caption=caption,
        x_label="layer",
        y_label=label,
        series=tuple(
            line(
                f"{name}, {origin}",
                values,
                origin,
                colours[name],
                label=name,
                dashed=origin == "measured",
            )
            for name, origin, values in lines
        ),
        y_range=(0, None),
        whole_x=True,
    )


def _seconds(collected: Collected) -> Iterator[Line]:
    yield from _of_tables(collected, "modelled_s", "modelled")
    for name, record in named_records(collected).items():
        network, images = network_of(record), record.images
        if network is not None:
            modelled = [(i, stage.modelled_s(network) / images) for i, stage in _blocks(record)]
            yield name, "modelled", modelled
        if record.was_timed:
            yield name, "measured", [(i, stage.seconds / images) for i, stage in _blocks(record)]


def _megabytes(collected: Collected) -> Iterator[Line]:
    yield from _of_tables(collected, "sent_mb", "counted")
    for name, record in named_records(collected).items():
        values = [(i, stage.sent_bytes / 1e6 / record.images) for i, stage in _blocks(record)]
        yield name, "counted", values


def _of_tables(collected: Collected, column: str, origin: Origin) -> Iterator[Line]:
    for table in collected.tables_of(TableKind.LAYERS):
        rows = [row for row in table.value.rows if row[column]]
        for network in dict.fromkeys(row["network"] for row in rows):
            own = [row for row in rows if row["network"] == network]
            name = f"{network}, {table.name}"
            yield name, origin, [(int(row["layer"]), float(row[column])) for row in own]


def _shapes(collected: Collected) -> str:
    """Describe the networks of the tables."""
    shapes = (
        f" {table.name}: {table.value.rows[0]['shape']}."
        for table in collected.tables_of(TableKind.LAYERS)
        if table.value.rows[0].get("shape")
    )
    return "".join(shapes)


def _blocks(record: RunRecord) -> Iterable[tuple[int, StageCost]]:
    return [
        (int(stage.name.split()[1]), stage)
        for stage in record.stages
        if stage.name.startswith("block ")
    ]


def named_records(collected: Collected) -> dict[str, RunRecord]:
    """Return records by name: the network, its form, and what else differs between them."""
    several = len({one.value.profile.protocol.name for one in collected.records}) > 1
    named = {}
    for one in collected.records:
        record = one.value
        protocol = f", {record.profile.protocol.name}" if several else ""
        batch = at_a_time(record.batches[0].images)
        named[f"{one.name}, {record.form}{protocol}{batch}"] = record
    return named


def at_a_time(images: int) -> str:
    """Return how a name says that images shared their exchanges.

    >>> at_a_time(1), at_a_time(4)
    ('', ', 4 images at a time')
    """
    return "" if images == 1 else f", {images} images at a time"


def network_of(record: RunRecord) -> NetworkLink | None:
    """Return the network to model seconds for: the record's own, else the paper's WAN.

    None for a protocol whose one-way messages are no rounds.
    """
    if not record.profile.protocol.counts_rounds:
        return None
    network = record.profile.network
    return network if network.is_emulated else WAN

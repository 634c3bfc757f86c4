"""Where the seconds of private runs go: by what a run does, and by what an image waits for."""

from mpcvit.report.charts.chart import BarChart, BarSeries, Origin
from mpcvit.report.charts.layers import named_records, network_of
from mpcvit.report.collect import Collected

_IMAGES = "all images"


def charts(collected: Collected) -> list[BarChart]:
    return [*_of_runs(collected), *_of_images(collected)]


def _of_runs(collected: Collected) -> list[BarChart]:
    """Return the wall clock's seconds of each run, which add up to its total."""
    runs = {
        name: record.times for name, record in named_records(collected).items() if record.was_timed
    }
    if not runs:
        return []
    runs = dict(sorted(runs.items(), key=lambda one: -one[1].total_s))
    parts = [{**times.set_up, _IMAGES: times.images_s} for times in runs.values()]
    return [
        BarChart(
            id="run-seconds",
            title="Seconds of each run, from the call to its answers",
            caption="By the wall clock. Everything but the images is set-up, once per session.",
            value_label="seconds",
            categories=tuple(runs),
            series=_stacked(parts, "measured"),
            stacked=True,
        )
    ]


def _of_images(collected: Collected) -> list[BarChart]:
    """Return what an image's seconds are made of, by the model of the network."""
    found: dict[str, dict[str, float]] = {}
    for name, record in named_records(collected).items():
        network = network_of(record)
        if network is None:
            continue
        bytes_one_way = sum(max(s.sent_bytes, s.received_bytes) for s in record.stages)
        found[name] = {
            "computing": record.compute_s / record.images,
            "waiting for exchanges": network.seconds(exchanges=record.exchanges, sent_bytes=0)
            / record.images,
            "sending bytes": network.seconds(exchanges=0, sent_bytes=bytes_one_way) / record.images,
        }
    if not found:
        return []
    found = dict(sorted(found.items(), key=lambda one: -sum(one[1].values())))
    return [
        BarChart(
            id="image-seconds",
            title="What the seconds of an image are made of",
            caption="Modelled: CPU seconds, half a round trip for each exchange, and the bytes "
            "over the bandwidth.",
            value_label="seconds",
            categories=tuple(found),
            series=_stacked(list(found.values()), "modelled"),
            stacked=True,
        )
    ]


def _stacked(bars: list[dict[str, float]], origin: Origin) -> tuple[BarSeries, ...]:
    names = dict.fromkeys(name for bar in bars for name in bar)
    return tuple(
        BarSeries(
            name=name,
            values=tuple(bar.get(name, 0.0) for bar in bars),
            origin=origin,
            hue=hue,
        )
        for hue, name in enumerate(names)
        if any(bar.get(name, 0.0) for bar in bars)
    )

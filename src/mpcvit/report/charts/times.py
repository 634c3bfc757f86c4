"""Where the seconds of private runs go: by what a run does, and by what an image waits for."""

from mpcvit.report.charts.chart import BarChart, stacked_chart
from mpcvit.report.charts.layers import named_records, network_of
from mpcvit.report.collect import Collected


def charts(collected: Collected) -> list[BarChart]:
    return [
        *stacked_chart(
            "run-seconds",
            "Seconds of each run, from the call to its answers",
            "By the wall clock. Everything but the images is set-up, once per session.",
            "seconds",
            _of_runs(collected),
            "measured",
        ),
        *stacked_chart(
            "image-seconds",
            "What the seconds of an image are made of",
            "Modelled: CPU seconds, half a round trip for each exchange, and the bytes over the "
            "bandwidth.",
            "seconds",
            _of_images(collected),
            "modelled",
        ),
    ]


def _of_runs(collected: Collected) -> dict[str, dict[str, float]]:
    """Return the wall clock's seconds of each run, which add up to its total."""
    return {
        name: {**record.times.set_up, "all images": record.times.images_s}
        for name, record in named_records(collected).items()
        if record.was_timed
    }


def _of_images(collected: Collected) -> dict[str, dict[str, float]]:
    """Return what an image's seconds are made of, by the model of the network."""
    found = {}
    for name, record in named_records(collected).items():
        network = network_of(record)
        if network is None:
            continue
        bytes_one_way = sum(max(s.sent_bytes, s.received_bytes) for s in record.stages)
        seconds = {
            "computing": record.compute_s,
            "waiting for exchanges": network.seconds(exchanges=record.exchanges, sent_bytes=0),
            "sending bytes": network.seconds(exchanges=0, sent_bytes=bytes_one_way),
        }
        found[name] = {part: value / record.images for part, value in seconds.items()}
    return found

"""What the rows of all measurements have in common: where they come from, and how they spread."""

import statistics
from collections.abc import Sequence
from typing import Any

from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.latency import WAN
from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.provenance import Environment

Row = dict[str, Any]


def spread(seconds: Sequence[float], median: str = "median_s", **others: Sequence[float]) -> Row:
    """Return the median, the extremes, and the median as a share of the medians of others."""
    middle = statistics.median(seconds)
    return {
        median: round(middle, 3),
        "fastest_s": round(min(seconds), 3),
        "slowest_s": round(max(seconds), 3),
        **{name: round(middle / statistics.median(other), 3) for name, other in others.items()},
    }


def network_of(profile: Profile) -> NetworkLink:
    """Return the profile's network, or the paper's WAN if it emulates none."""
    return profile.network if profile.network.is_emulated else WAN


def row_context(model: ModelConfig | None, profile: Profile) -> Row:
    """Return the columns for shape, profile, network and machine."""
    here, network = Environment.current(), network_of(profile)
    shape = {}
    if model is not None:
        layers, width = f"{model.depth} layers, {model.heads} heads", f"width {model.width}"
        shape["shape"] = f"{layers}, {width}, {model.tokens} tokens"
    return {
        **shape,
        "protocol": profile.protocol.name,
        "ring_bits": profile.ring_bits,
        "fraction_bits": profile.fraction_bits,
        "round_trip_ms": network.round_trip_ms,
        "bandwidth_mb_per_s": network.bandwidth_bytes_per_s / 1e6,
        "warning": profile.warning,
        "hardware": here.hardware,
        "commit": here.commit,
        "created": here.created,
    }

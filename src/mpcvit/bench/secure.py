"""The paper's measurements of private inference: one function per table or figure.

Counts are exact. `modelled_s` adds up exchanges, bytes and computing for a
network; `measured_s` is the wall clock of two processes through an emulated
one. The two never share a column.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mpcvit.arch import Architecture, AttentionKind
from mpcvit.bench.networks import (
    mixed,
    paper_networks,
    random_checkpoint,
    random_images,
)
from mpcvit.checkpoint import Checkpoint
from mpcvit.classifier import Classifier
from mpcvit.config import ModelConfig
from mpcvit.cost.latency import WAN
from mpcvit.data import Split
from mpcvit.model.attention import relu_softmax_weights
from mpcvit.profile import Network, Profile
from mpcvit.records import Environment
from mpcvit.run_record import RunRecord, StageCost
from mpcvit.runtime.components import Component, attention_layer, block_parts, softmax_parts
from mpcvit.runtime.probe import probe
from mpcvit.runtime.run import run, run_part
from mpcvit.runtime.stages import fit_fixed_point

Progress = Callable[[str, int, int], None]
Row = dict[str, Any]

TEN_KINDS = tuple(kind for kind in AttentionKind if kind is not AttentionKind.THE_X)


def bench_attention(
    model: ModelConfig, profile: Profile, *, measure: bool, progress: Progress
) -> list[Row]:
    """One attention layer of each kind."""
    rows = []
    for index, kind in enumerate(TEN_KINDS):
        architecture = Architecture.uniform(kind, depth=model.depth, heads=model.heads)
        fitted, _ = fit_fixed_point(model, architecture, profile)
        layer = attention_layer(kind, fitted)
        cost = probe(layer.function, layer.inputs, profile).cost
        measured = None
        if measure:
            measured = run_part(random_checkpoint(model, architecture), profile).measured_s
        rows.append({"attention": kind.value, **_counts(cost, profile), **_measured(measured)})
        progress("attention kinds", index + 1, len(TEN_KINDS))
    return [{**row, **_here(model, profile)} for row in rows]


def bench_network(
    model: ModelConfig,
    profile: Profile,
    *,
    only: Sequence[str],
    measure: bool,
    progress: Progress,
) -> list[Row]:
    """Whole networks, as they are written."""
    networks = {
        name: architecture
        for name, architecture in paper_networks(model).items()
        if not only or name in only
    }
    rows = []
    for index, (name, architecture) in enumerate(networks.items()):
        checkpoint, images = random_checkpoint(model, architecture), random_images(model)
        counted = run(checkpoint, images, profile, simulate=True).record
        measured = run(checkpoint, images, profile).record if measure else None
        rows.append(
            {
                "network": name,
                **_record_counts(counted, profile),
                **_measured(None if measured is None else measured.measured_s),
                "peak_mb": ""
                if measured is None
                else round(sum(measured.peak_bytes.values()) / 1e6),
                "architecture": architecture.digest(),
            }
        )
        progress("networks", index + 1, len(networks))
    return [{**row, **_here(model, profile)} for row in rows]


def bench_layers(model: ModelConfig, profile: Profile, *, progress: Progress) -> list[Row]:
    """Seconds and bytes of every stage: softmax, ReLU softmax, and half of the heads mixed."""
    networks = {
        "softmax": Architecture.uniform(
            AttentionKind.SOFTMAX, depth=model.depth, heads=model.heads
        ),
        "relu_softmax": Architecture.uniform(
            AttentionKind.RELU_SOFTMAX, depth=model.depth, heads=model.heads
        ),
        "mpcvit-0.5": mixed(model, 0.5),
    }
    rows = []
    for index, (name, architecture) in enumerate(networks.items()):
        checkpoint = random_checkpoint(model, architecture)
        record = run(checkpoint, random_images(model), profile, simulate=True).record
        for stage in record.stages:
            if stage.name.startswith("block"):
                row = {"network": name, "layer": int(stage.name.split()[1])}
                rows.append({**row, **_counts(stage, profile)})
        progress("networks", index + 1, len(networks))
    return [{**row, **_here(model, profile)} for row in rows]


def bench_breakdown(
    model: ModelConfig, profiles: Mapping[str, Profile], *, progress: Progress
) -> list[Row]:
    """A block by heads and by tokens, a network by operation, and softmax by its parts."""
    shapes = [
        *(("heads", heads, _with_heads(model, heads)) for heads in (1, 2, 4, 8)),
        *(("tokens", tokens, _with_patches(model, side)) for side, tokens in _SIDES),
    ]
    work: list[tuple[str, str, Any, Profile, str, Component, int]] = []
    for name, profile in profiles.items():
        for varied, value, shape in shapes:
            for part, component in block_parts(shape).items():
                work.append((f"block by {varied}", name, value, profile, part, component, 1))
        for part, component in block_parts(model).items():
            work.append(("network", name, model.depth, profile, part, component, model.depth))
        for part, component in softmax_parts(model).items():
            work.append(("softmax", name, "", profile, part, component, 1))
    rows = []
    for index, (table, name, value, profile, part, component, times) in enumerate(work):
        cost = probe(component.function, component.inputs, profile).cost
        counts = _counts(cost, profile)
        for column in ("exchanges", "sent_mb", "compute_s", "modelled_s"):
            counts[column] = round(times * counts[column], 4)
        rows.append({"table": table, "protocol": name, "value": value, "part": part, **counts})
        progress("operations", index + 1, len(work))
    return [{**row, **_here(model, profiles[row["protocol"]])} for row in rows]


def bench_precision(profile: Profile, *, progress: Progress) -> list[Row]:
    """Relative error of softmax and ReLU softmax against the variance of their input."""
    import jax

    variances = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    eps = profile.resolution
    rows = []
    for index, variance in enumerate(variances):
        rng = np.random.default_rng(0)
        scores = (np.sqrt(variance) * rng.standard_normal((64, 65))).astype(np.float32)
        exact = np.asarray(scores, np.float64)
        powers = np.exp(exact - exact.max(axis=-1, keepdims=True))
        positive = np.maximum(exact, 0)
        for name, function, reference in (
            (
                "softmax",
                lambda s: jax.nn.softmax(s, axis=-1),
                powers / powers.sum(-1, keepdims=True),
            ),
            (
                "relu_softmax",
                lambda s: relu_softmax_weights(s, eps),
                positive / (positive.sum(-1, keepdims=True) + eps),
            ),
        ):
            found = probe(function, [scores], profile).output
            error = np.linalg.norm(found - reference) / np.linalg.norm(reference)
            rows.append(
                {
                    "attention": name,
                    "variance": variance,
                    "relative_error": float(f"{error:.4g}"),
                    "largest_error": float(f"{np.abs(found - reference).max():.4g}"),
                }
            )
        progress("variances", index + 1, len(variances))
    return [{**row, **_here(None, profile)} for row in rows]


def bench_agreement(
    checkpoint: Checkpoint,
    split: Split,
    profile: Profile,
    *,
    images: int,
    batch_size: int,
    simulate: bool,
    progress: Progress,
) -> Row:
    """How often private and plaintext predictions agree on test images."""
    pixels = np.asarray(split.images[:images])
    result = run(
        checkpoint,
        pixels,
        profile,
        batch_size=batch_size,
        simulate=simulate,
        progress=progress,
    )
    classifier = Classifier(checkpoint)
    plain = classifier(classifier.preprocess(list(pixels)))
    labels = np.asarray(split.labels[:images])
    private_top, plain_top = result.logits.argmax(axis=1), plain.argmax(axis=1)
    return {
        "images": len(pixels),
        "agree": int((private_top == plain_top).sum()),
        "plain_right": int((plain_top == labels).sum()),
        "private_right": int((private_top == labels).sum()),
        "largest_logit_error": float(f"{np.abs(result.logits - plain).max():.4g}"),
        "logit_range": float(f"{np.ptp(plain):.4g}"),
        **_record_counts(result.record, profile),
        **_here(checkpoint.model, profile),
    }


_SIDES = ((4, 17), (8, 65), (16, 257))


def _with_heads(model: ModelConfig, heads: int) -> ModelConfig:
    return replace(model, heads=heads)


def _with_patches(model: ModelConfig, side: int) -> ModelConfig:
    return replace(model, image_size=side * model.patch_size)


def _network_of(profile: Profile) -> Network:
    """The profile's own, or the paper's WAN where it emulates none."""
    return profile.network if profile.network.is_emulated else WAN


def _counts(cost: StageCost, profile: Profile) -> Row:
    return {
        "exchanges": cost.exchanges,
        "sent_mb": round(cost.sent_bytes / 1e6, 4),
        "compute_s": round(cost.compute_s, 4),
        "modelled_s": round(cost.modelled_s(_network_of(profile)), 4),
    }


def _record_counts(record: RunRecord, profile: Profile) -> Row:
    return {
        "exchanges": record.exchanges,
        "sent_mb": round(record.sent_bytes / 1e6, 3),
        "compute_s": round(record.compute_s, 3),
        "modelled_s": round(record.modelled_s(_network_of(profile)), 3),
    }


def _measured(seconds: float | None) -> Row:
    return {"measured_s": "" if seconds is None else round(seconds, 3)}


def _here(model: ModelConfig | None, profile: Profile) -> Row:
    here, network = Environment.here(), _network_of(profile)
    shape = {}
    if model is not None:
        shape = {
            "shape": f"{model.depth} layers, {model.heads} heads, width {model.width}, "
            f"{model.tokens} tokens"
        }
    return {
        **shape,
        "protocol": profile.protocol.value,
        "ring_bits": profile.ring_bits,
        "fraction_bits": profile.fraction_bits,
        "round_trip_ms": network.round_trip_ms,
        "bandwidth_mb_per_s": network.bandwidth_bytes_per_s / 1e6,
        "warning": profile.warning,
        "hardware": here.hardware,
        "commit": here.commit,
        "created": here.created,
    }

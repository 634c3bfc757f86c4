"""The paper's measurements of private inference: one function per table or figure.

Counts are exact. `modelled_s` adds up exchanges, bytes and computing for a
network; `measured_s` is the wall clock of two processes through an emulated
one. The two never share a column.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.latency import WAN
from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.provenance import Environment
from mpcvit.artifacts.record import BatchCost, RunRecord, StageCost
from mpcvit.attention.relu_softmax import relu_softmax_weights
from mpcvit.bench.networks import (
    mixed,
    networks_as_written,
    random_checkpoint,
    random_images,
)
from mpcvit.classifier import Classifier
from mpcvit.data import Split
from mpcvit.kinds.table import KINDS, RELU_SOFTMAX, SOFTMAX
from mpcvit.lowering.program import Model, SecureProgram
from mpcvit.secure.components import block_parts, find_component, softmax_parts
from mpcvit.secure.probe import measure_function, measure_in_processes
from mpcvit.secure.run import run, with_engine_of
from mpcvit.secure.spu.stages import fit_fixed_point

Progress = Callable[[str, int, int], None]
Row = dict[str, Any]


def bench_attention(
    model: ModelConfig, profiles: Mapping[str, Profile], *, measure: bool, progress: Progress
) -> Iterator[Row]:
    """Yield one attention layer of each kind, under one profile after the other."""
    work = [(kind, name) for kind in KINDS.values() for name in profiles]
    for index, (kind, name) in enumerate(work):
        progress("attention kinds", index, len(work))
        architecture = Architecture.uniform(kind, depth=model.depth, heads=model.heads)
        fitted, _ = fit_fixed_point(model, architecture, profiles[name])
        costs = _component(f"attention/{kind.value}", fitted, profiles[name], measure=measure)
        context = row_context(model, profiles[name])
        yield {"attention": kind.value, "profile": name, **costs, **context}
    progress("attention kinds", len(work), len(work))


def bench_network(
    model: ModelConfig,
    profiles: Mapping[str, Profile],
    *,
    only: Sequence[str],
    measure: bool,
    progress: Progress,
    searched: Mapping[str, Architecture] | None = None,
) -> Iterator[Row]:
    """Yield whole networks as they are written, each under one profile after the other.

    `searched` ones take the place of random choices.
    """
    networks = {
        **networks_as_written(model),
        **{name: (model, architecture) for name, architecture in (searched or {}).items()},
    }
    work = [(name, own) for name in networks if not only or name in only for own in profiles]
    for index, (name, profile_name) in enumerate(work):
        progress("networks", index, len(work))
        (written, architecture), profile = networks[name], profiles[profile_name]
        row: Row = {
            "network": name,
            "profile": profile_name,
            "activation": written.activation.value,
        }
        if measure:
            checkpoint = random_checkpoint(written, architecture)
            record = run(
                checkpoint, random_images(model), profile, reveal="logits", insecure=True
            ).record
            row |= {**_counts(record, profile), **_measured(record.measured_s)}
            row["peak_mb"] = round(sum(record.peak_bytes.values()) / 1e6)
        else:
            cost = count_stages(written, architecture, profile).total
            row |= {**_counts(cost, profile), **_measured(None), "peak_mb": ""}
        yield {**row, "architecture": architecture.digest(), **row_context(model, profile)}
    progress("networks", len(work), len(work))


def count_stages(model: ModelConfig, architecture: Architecture, profile: Profile) -> BatchCost:
    """Count what one image costs, stage by stage, in the simulator.

    Layers that differ in nothing but the order of their heads and tokens cost
    the same, and are run once.
    """
    different = {_ingredients(layer): layer for layer in architecture.layers}
    few = Architecture(layers=tuple(different.values()))
    checkpoint = random_checkpoint(replace(model, depth=len(few.layers)), few)
    record = run(checkpoint, random_images(model), profile, reveal="logits", simulate=True).record
    stages = {stage.name: stage for stage in record.stages}
    block_of = {key: stages.pop(f"block {index}") for index, key in enumerate(different)}
    blocks = [
        replace(block_of[_ingredients(layer)], name=f"block {index}")
        for index, layer in enumerate(architecture.layers)
    ]
    around = list(stages.values())
    place = [stage.name for stage in around].index("embedding") + 1
    return BatchCost(images=1, stages=(*around[:place], *blocks, *around[place:]))


def _ingredients(layer: LayerArchitecture) -> Hashable:
    forms = (layer.mlp,) if isinstance(layer.mlp, MlpForm) else layer.mlp
    return frozenset(Counter(layer.heads).items()), frozenset(Counter(forms).items())


def bench_layers(model: ModelConfig, profile: Profile, *, progress: Progress) -> list[Row]:
    """Seconds and bytes of every stage: softmax, ReLU softmax, and half of the heads mixed."""
    networks = {
        "softmax": Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads),
        "relu_softmax": Architecture.uniform(RELU_SOFTMAX, depth=model.depth, heads=model.heads),
        "mpcvit-0.5": mixed(model, 0.5),
    }
    rows = []
    for index, (name, architecture) in enumerate(networks.items()):
        for stage in count_stages(model, architecture, profile).stages:
            if stage.name.startswith("block"):
                row = {"network": name, "layer": int(stage.name.split()[1])}
                rows.append({**row, **_counts(stage, profile)})
        progress("networks", index + 1, len(networks))
    return [{**row, **row_context(model, profile)} for row in rows]


def bench_breakdown(
    model: ModelConfig,
    profiles: Mapping[str, Profile],
    *,
    most_tokens: int,
    measure: bool,
    progress: Progress,
) -> list[Row]:
    """Measure a block by heads and by tokens, a network by operation, and softmax by its parts."""
    by_tokens = (_with_patches(model, side) for side in (4, 8, 16))
    shapes = [
        *(("heads", heads, replace(model, heads=heads)) for heads in (1, 2, 4, 8)),
        *(("tokens", one.tokens, one) for one in by_tokens if one.tokens <= most_tokens),
    ]
    work: list[tuple[str, str, Any, ModelConfig, str, int]] = []
    for name in profiles:
        for varied, value, shape in shapes:
            parts = (f"block/{part}" for part in block_parts(shape))
            work += [(f"block by {varied}", name, value, shape, part, 1) for part in parts]
        parts = (f"block/{part}" for part in block_parts(model))
        work += [
            ("network of such blocks", name, model.depth, model, part, model.depth)
            for part in parts
        ]
        parts = (f"softmax/{part}" for part in softmax_parts(model))
        work += [("softmax", name, "", model, part, 1) for part in parts]

    @cache  # the network's own block stands in several tables
    def costs(part: str, shape: ModelConfig, name: str) -> Row:
        return _component(part, shape, profiles[name], measure=measure)

    rows = []
    for index, (table, name, value, shape, part, times) in enumerate(work):
        scaled = {
            column: round(times * cost, 4) if isinstance(cost, (int, float)) else cost
            for column, cost in costs(part, shape, name).items()
        }
        label = part.partition("/")[2]
        rows.append({"table": table, "protocol": name, "value": value, "part": label, **scaled})
        progress("operations", index + 1, len(work))
    return [{**row, **row_context(model, profiles[row["protocol"]])} for row in rows]


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
            found = measure_function(function, [scores], profile).output
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
    return [{**row, **row_context(None, profile)} for row in rows]


def bench_agreement(
    model: Model,
    split: Split,
    profile: Profile,
    *,
    images: int,
    batch_size: int,
    simulate: bool,
    progress: Progress,
) -> Row:
    """How often private and plaintext predictions agree on test images.

    Of a lowered program, plaintext is its emulation.
    """
    pixels = np.asarray(split.images[:images])
    result = run(
        model,
        pixels,
        profile,
        batch_size=batch_size,
        reveal="logits",
        simulate=simulate,
        insecure=True,
        progress=progress,
    )
    emulation = model if isinstance(model, SecureProgram) else Classifier(model)
    plain = emulation(emulation.preprocess(list(pixels)))
    labels = np.asarray(split.labels[:images])
    private_top, plain_top = result.logits.argmax(axis=1), plain.argmax(axis=1)
    return {
        "images": len(pixels),
        "agree": int((private_top == plain_top).sum()),
        "plain_right": int((plain_top == labels).sum()),
        "private_right": int((private_top == labels).sum()),
        "largest_logit_error": float(f"{np.abs(result.logits - plain).max():.4g}"),
        "logit_range": float(f"{np.ptp(plain):.4g}"),
        **_counts(result.record, profile),
        **row_context(model.model, with_engine_of(model, profile)),
    }


def _component(name: str, model: ModelConfig, profile: Profile, *, measure: bool) -> Row:
    """Count in the simulator, or count and time in processes if asked to."""
    if measure:
        cost = measure_in_processes(name, model, profile)
        return {**_counts(cost, profile), **_measured(cost.seconds)}
    component = find_component(name, model)
    cost = measure_function(component.function, component.inputs, profile).cost
    return {**_counts(cost, profile), **_measured(None)}


def _with_patches(model: ModelConfig, side: int) -> ModelConfig:
    return replace(model, image_size=side * model.patch_size)


def _network_of(profile: Profile) -> NetworkLink:
    """Return the profile's network, or the paper's WAN if it emulates none."""
    return profile.network if profile.network.is_emulated else WAN


def _counts(cost: StageCost | RunRecord, profile: Profile) -> Row:
    return {
        "exchanges": cost.exchanges,
        "sent_mb": round(cost.sent_bytes / 1e6, 4),
        "compute_s": round(cost.compute_s, 4),
        "modelled_s": ""
        if not profile.protocol.counts_rounds
        else round(cost.modelled_s(_network_of(profile)), 4),
    }


def _measured(seconds: float | None) -> Row:
    return {"measured_s": "" if seconds is None else round(seconds, 3)}


def row_context(model: ModelConfig | None, profile: Profile) -> Row:
    """Return the columns for shape, profile, network and machine."""
    here, network = Environment.current(), _network_of(profile)
    shape = {}
    if model is not None:
        shape = {
            "shape": f"{model.depth} layers, {model.heads} heads, width {model.width}, "
            f"{model.tokens} tokens"
        }
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

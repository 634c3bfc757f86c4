"""The paper's measurements of private inference: one function per table or figure.

Counts are exact. `modelled_s` adds up exchanges, bytes and computing for a
network; `measured_s` is the wall clock of two processes through an emulated
one. The two never share a column.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.record import BatchCost, RunRecord, StageCost
from mpcvit.attention.relu_softmax import relu_softmax_weights
from mpcvit.bench.networks import mixed, networks_as_written, random_checkpoint, random_images
from mpcvit.bench.rows import Row, network_of, row_context
from mpcvit.classifier import Classifier
from mpcvit.data import Split
from mpcvit.kinds.table import KINDS, RELU_SOFTMAX, SOFTMAX, Kind
from mpcvit.lowering.program import Model, SecureProgram
from mpcvit.progress import Progress, counted
from mpcvit.secure.components import block_parts, find_component, softmax_parts
from mpcvit.secure.probe import measure_function, measure_in_processes
from mpcvit.secure.run import run, with_engine_of
from mpcvit.secure.spu.stages import fit_fixed_point


def bench_attention(
    model: ModelConfig,
    profiles: Mapping[str, Profile],
    *,
    kinds: Sequence[Kind] = (),
    measure: bool,
    progress: Progress,
) -> Iterator[Row]:
    """Yield one attention layer of each kind, or of some, under one profile after the other."""
    work = [(kind, name) for kind in kinds or KINDS.values() for name in profiles]
    for kind, name in counted("attention kinds", work, progress):
        architecture = Architecture.uniform(kind, depth=model.depth, heads=model.heads)
        fitted, _ = fit_fixed_point(model, architecture, profiles[name])
        costs = _component(f"attention/{kind.value}", fitted, profiles[name], measure=measure)
        context = row_context(model, profiles[name])
        yield {"attention": kind.value, "profile": name, **costs, **context}


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
    for name, profile_name in counted("networks", work, progress):
        (written, architecture), profile = networks[name], profiles[profile_name]
        row: Row = {
            "network": name,
            "profile": profile_name,
            "activation": written.activation.value,
        }
        if measure:
            checkpoint, images = random_checkpoint(written, architecture), random_images(model)
            record = run(checkpoint, images, profile, reveal="logits", insecure=True).record
            row |= {**_counts(record, profile), "measured_s": round(record.measured_s, 3)}
            row["peak_mb"] = round(sum(record.peak_bytes.values()) / 1e6)
        else:
            cost = count_stages(written, architecture, profile).total
            row |= {**_counts(cost, profile), "measured_s": "", "peak_mb": ""}
        yield {**row, "architecture": architecture.digest(), **row_context(written, profile)}


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
    """Count the cost of every stage: softmax, ReLU softmax, and half of the heads mixed."""
    networks = {
        "softmax": Architecture.uniform(SOFTMAX, depth=model.depth, heads=model.heads),
        "relu_softmax": Architecture.uniform(RELU_SOFTMAX, depth=model.depth, heads=model.heads),
        "mpcvit-0.5": mixed(model, 0.5),
    }
    rows = []
    for name, architecture in counted("networks", networks.items(), progress):
        for stage in count_stages(model, architecture, profile).stages:
            if stage.name.startswith("block"):
                row = {"network": name, "layer": int(stage.name.split()[1])}
                rows.append({**row, **_counts(stage, profile)})
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
    by_tokens = (replace(model, image_size=side * model.patch_size) for side in (4, 8, 16))
    shapes = [
        *(("heads", heads, replace(model, heads=heads)) for heads in (1, 2, 4, 8)),
        *(("tokens", shape.tokens, shape) for shape in by_tokens if shape.tokens <= most_tokens),
    ]
    tables = [
        *(
            (f"block by {varied}", value, shape, f"block/{part}", 1)
            for varied, value, shape in shapes
            for part in block_parts(shape)
        ),
        *(
            ("network of such blocks", model.depth, model, f"block/{part}", model.depth)
            for part in block_parts(model)
        ),
        *(("softmax", "", model, f"softmax/{part}", 1) for part in softmax_parts(model)),
    ]
    work = [(name, *table) for name in profiles for table in tables]

    @cache  # the network's own block stands in several tables
    def costs(part: str, shape: ModelConfig, name: str) -> Row:
        return _component(part, shape, profiles[name], measure=measure)

    rows = []
    for name, table, value, shape, part, times in counted("operations", work, progress):
        scaled = {
            column: round(times * cost, 4) if isinstance(cost, (int, float)) else cost
            for column, cost in costs(part, shape, name).items()
        }
        label = part.partition("/")[2]
        rows.append({"table": table, "protocol": name, "value": value, "part": label, **scaled})
    return [{**row, **row_context(model, profiles[row["protocol"]])} for row in rows]


def bench_precision(profile: Profile, *, progress: Progress) -> list[Row]:
    """Measure relative errors of softmax and ReLU softmax against the variance of their input."""
    import jax

    variances = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
    eps = profile.resolution
    rows = []
    for variance in counted("variances", variances, progress):
        rng = np.random.default_rng(0)
        scores = (np.sqrt(variance) * rng.standard_normal((64, 65))).astype(np.float32)
        exact = np.asarray(scores, np.float64)
        powers = np.exp(exact - exact.max(axis=-1, keepdims=True))
        positive = np.maximum(exact, 0)
        inverse = 1 / (positive.sum(-1, keepdims=True) + eps)
        for name, function, reference in (
            ("softmax", jax.nn.softmax, powers / powers.sum(-1, keepdims=True)),
            ("relu_softmax", lambda s: relu_softmax_weights(s, eps), positive * inverse),
        ):
            error = measure_function(function, [scores], profile).output - reference
            relative = np.linalg.norm(error) / np.linalg.norm(reference)
            rows.append(
                {
                    "attention": name,
                    "variance": variance,
                    "relative_error": float(f"{relative:.4g}"),
                    "largest_error": float(f"{np.abs(error).max():.4g}"),
                }
            )
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
    """Count how often private and plaintext predictions agree on test images.

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
        return {**_counts(cost, profile), "measured_s": round(cost.seconds, 3)}
    component = find_component(name, model)
    cost = measure_function(component.function, component.inputs, profile).cost
    return {**_counts(cost, profile), "measured_s": ""}


def _counts(cost: StageCost | RunRecord, profile: Profile) -> Row:
    return {
        "exchanges": cost.exchanges,
        "sent_mb": round(cost.sent_bytes / 1e6, 4),
        "compute_s": round(cost.compute_s, 4),
        "modelled_s": ""
        if not profile.protocol.counts_rounds
        else round(cost.modelled_s(network_of(profile)), 4),
    }

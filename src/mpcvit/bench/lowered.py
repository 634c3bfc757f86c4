"""Plain against lowered: what the same networks cost both ways, in one run.

A lowered network's cost depends on the intervals of its approximations, and random
weights have no meaningful ones. Networks of any shape therefore take the
approximations of a trained network of their kind that was lowered.
`program.json` holds them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.engine import EngineSettings, choose_engine
from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.record import BatchCost, Reveal, RunRecord, StageCost
from mpcvit.bench.networks import random_checkpoint, random_images
from mpcvit.bench.rows import Row, row_context
from mpcvit.errors import UserError, nearest
from mpcvit.kinds.table import Kind
from mpcvit.lowering.fold import fold
from mpcvit.lowering.program import (
    Calibration,
    Model,
    PublicProgram,
    SecureProgram,
    read_description,
    shapes_of,
)
from mpcvit.lowering.sites import HEAD_NORM, Plan, needed_sites, site_label
from mpcvit.progress import Progress, counted
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.run import run


def bench_lowering(
    model: ModelConfig,
    profiles: Mapping[str, Profile],
    references: Sequence[PublicProgram],
    *,
    networks: Mapping[str, Architecture],
    batch_sizes: Sequence[int],
    reveal: Reveal,
    stage: str | None,
    measure: bool,
    progress: Progress,
    lowered_only: bool = False,
) -> Iterator[Row]:
    """Yield two rows per network, batch size and profile: as it is written, and lowered.

    `lowered_only` leaves out the first, which takes most of the time. `stage` looks
    at one stage alone, such as "block 0". The lowered one is of a session long enough
    for masks of kernels to be reused, where they can be: with a dealer. Then the row
    also tells what the set-up takes once, what a batch takes without it, and from
    which batch on it has paid.
    """
    work = list(product(profiles, networks, batch_sizes))
    for profile_name, name, batch_size in counted("networks", work, progress):
        profile, architecture = profiles[profile_name], networks[name]
        checkpoint = random_checkpoint(model, architecture)
        program = lower_like(references, model, architecture, profile)
        costs = partial(
            _cost,
            profile=profile,
            batch_size=batch_size,
            reveal=reveal,
            stage=stage,
            measure=measure,
        )
        plain = None if lowered_only else costs(checkpoint, batches=1)
        lowered = costs(program, batches=LEAST_RUNS)
        if lowered["set_up_mb"]:
            fresh = costs(program, batches=LEAST_RUNS - 1)
            lowered |= _beside_fresh(lowered, fresh, batch_size)
        forms = [("lowered", lowered, program.engine.apply(profile))]
        if plain is not None:
            forms.insert(0, ("plain", plain, profile))
        for form, cost, engine in forms:
            yield {
                "network": name,
                "stage": stage or "all",
                "form": form,
                "profile": profile_name,
                "batch": batch_size,
                "reveal": reveal.value,
                **cost,
                "times_plain": _ratio(cost, plain),
                **row_context(model, engine),
            }


def lower_like(
    references: Sequence[PublicProgram],
    model: ModelConfig,
    architecture: Architecture,
    profile: Profile,
) -> SecureProgram:
    """Return a network of random weights, lowered for a profile as the references were."""
    plan = plan_for(architecture, references)
    return lower_with_plan(plan, model, architecture, choose_engine(profile))


def lower_with_plan(
    plan: Plan, model: ModelConfig, architecture: Architecture, engine: EngineSettings
) -> SecureProgram:
    """Return a network of random weights with the approximations of another."""
    checkpoint = random_checkpoint(model, architecture)
    weights = fold(model, architecture, checkpoint.parameters)
    return SecureProgram(
        public=PublicProgram(
            model=model,
            architecture=architecture,
            data=checkpoint.data,
            classes=checkpoint.classes,
            plan=adapt_plan(plan, model, architecture),
            engine=engine,
            shapes=shapes_of(weights),
        ),
        calibration=Calibration(images=0, error_budget=1.0, error=0.0),
        parameters=weights,
        provenance=checkpoint.provenance,
    )


def adapt_plan(plan: Plan, model: ModelConfig, architecture: Architecture) -> Plan:
    """Return another network's approximations for the sites that this network has.

    The first layer takes those of the first layer, and later ones go round the others.
    If such a layer lacks one, the next that has it lends it.
    """
    depth = 1 + max(int(label.split()[1]) for label in plan if label != HEAD_NORM)
    others = list(range(1, depth)) or [0]
    adapted: Plan = {}
    for label in needed_sites(model, architecture):
        lenders = [label]
        if label != HEAD_NORM:
            _, index, name = label.split()
            start = (int(index) - 1) % len(others)
            order = [0, *others] if index == "0" else [*others[start:], *others[:start], 0]
            lenders = [site_label(layer, name) for layer in order]
        lent = next((plan[lender] for lender in lenders if lender in plan), None)
        if lent is not None:
            adapted[label] = lent
    return adapted


def plan_for(architecture: Architecture, references: Sequence[PublicProgram]) -> Plan:
    """Return the plan of the first reference with all kinds that need approximations."""
    wanted = {kind for kind in _kinds(architecture) if kind.sites}
    fitting = (reference for reference in references if wanted <= _kinds(reference.architecture))
    plan = next(fitting, references[0]).plan
    assert plan is not None
    return plan


def _kinds(architecture: Architecture) -> frozenset[Kind]:
    return frozenset().union(*(layer.kinds for layer in architecture.layers))


def read_reference(path: Path) -> PublicProgram:
    """Read the public half of a program, whose approximations others may take."""
    return read_description(path).public


def _cost(
    model: Model,
    profile: Profile,
    batch_size: int,
    reveal: Reveal,
    stage: str | None,
    *,
    batches: int,
    measure: bool,
) -> Row:
    """Return the cost of the last batch of a session."""
    images = random_images(model.model, batches * batch_size)
    record = run(
        model,
        images,
        profile,
        batch_size=batch_size,
        reveal=reveal,
        simulate=not measure,
        insecure=True,
    ).record
    steady, set_up = _find(record.batches[-1], stage), record.set_up
    return {
        "exchanges": steady.exchanges,
        "sent_mb": round(steady.sent_bytes / 1e6, 3),
        "compute_s": round(steady.compute_s / batch_size, 3),
        "modelled_s": ""
        if not profile.protocol.counts_rounds
        else round(steady.modelled_s(profile.network) / batch_size, 3),
        "measured_s": round(steady.seconds / batch_size, 3) if measure else "",
        "set_up_exchanges": set_up.warm_up_exchanges,
        "set_up_mb": round(set_up.warm_up_bytes / 1e6, 3),
        "set_up_s": _set_up_s(record, profile.network),
        "waited_s": round(record.offline.wait_s, 3) if measure and record.offline else 0.0,
        **dict.fromkeys(("fresh_mb", "fresh_s", "pays_from"), ""),
        "made_of": _made_of(steady),
    }


def _set_up_s(record: RunRecord, network: NetworkLink) -> float:
    """Return the seconds of first uses: by the wall clock where it ran, or as modelled."""
    set_up = record.set_up
    if record.was_timed:
        return round(set_up.warm_up_s, 3)
    on_the_way = network.seconds(
        exchanges=set_up.warm_up_exchanges, sent_bytes=set_up.warm_up_bytes
    )
    return round(on_the_way, 3)


def _beside_fresh(cost: Row, fresh: Row, batch_size: int) -> Row:
    """Return the cost of a batch without reused masks, and the batch from which reuse has paid.

    Waiting for the dealer counts: a set-up has material too, but the first
    batch's then comes while it runs.
    """
    column = "measured_s" if cost["measured_s"] != "" else "modelled_s"
    once_s = cost["set_up_s"] + cost["waited_s"] - fresh["waited_s"]
    saved_s = (fresh[column] - cost[column]) * batch_size
    return {
        "fresh_mb": fresh["sent_mb"],
        "fresh_s": fresh[column],
        "pays_from": math.ceil(once_s / saved_s) if saved_s > 0 else "",
    }


def _made_of(cost: StageCost) -> str:
    """List operations that talk: their exchanges, bytes, and seconds with all waiting."""
    talking = sorted(
        (operation for operation in cost.operations if operation.exchanges),
        key=lambda operation: -operation.seconds,
    )
    return "; ".join(
        f"{operation.name} {operation.exchanges} exchanges "
        f"{operation.sent_bytes / 1e6:.1f} MB {operation.seconds:.2f} s"
        for operation in talking
    )


def _find(batch: BatchCost, stage: str | None) -> StageCost:
    if stage is None:
        return batch.total
    names = [own.name for own in batch.stages]
    if stage not in names:
        raise UserError(f"there is no stage {stage!r}; {nearest(stage, names)}")
    return batch.stages[names.index(stage)]


def _ratio(cost: Row, plain: Row | None) -> float | str:
    """Return a ratio of seconds: by the wall clock where it ran, or as modelled."""
    column = "measured_s" if cost["measured_s"] != "" else "modelled_s"
    return "" if plain is None or cost[column] == "" else round(cost[column] / plain[column], 3)

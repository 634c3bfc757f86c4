"""Prices of a model's choices, measured once and kept with the runs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mpcvit import __version__
from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.config import ModelConfig
from mpcvit.artifacts.latency import LatencyTable
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.provenance import content_digest
from mpcvit.bench.latency import measure_latency, measure_lowered_latency
from mpcvit.bench.lowered import lower_with_plan
from mpcvit.codec import encode
from mpcvit.cost.estimate import estimate
from mpcvit.experiments.store import Outcome, Price, reuse_or_make
from mpcvit.kinds.table import KINDS, Kind
from mpcvit.lowering.program import SecureProgram
from mpcvit.progress import Progress

# Raised when a choice is computed otherwise. 2: owners multiply fused linears themselves.
_COUNTING = 2


def price_once(
    path: Path,
    model: ModelConfig,
    profile: Profile,
    kinds: Sequence[Kind],
    progress: Progress,
    program: SecureProgram | None = None,
    forms: tuple[MlpForm, ...] = tuple(MlpForm),
) -> Outcome[LatencyTable]:
    """Return the prices of a model, and write its latency file unless it is there.

    Prices are measured. With a `program`, they are those of lowered networks with its
    approximations, for some `forms` of MLPs. Those of a protocol whose exchanges are no
    rounds are modelled.
    """

    def make() -> None:
        if not profile.protocol.counts_rounds:
            estimate(model, profile.network).save(path)
        elif program is not None:
            heads = Architecture.uniform(kinds[0], depth=model.depth, heads=model.heads)
            priced = lower_with_plan(program.plan, model, heads, program.engine)
            measure_lowered_latency(priced, profile, tuple(kinds), progress, forms).save(path)
        else:
            measure_latency(model, profile, tuple(kinds), progress).save(path)

    made_from = {
        "model": encode(model),
        "profile": encode(profile),
        "kinds": sorted(kind.value for kind in kinds),
        "version": __version__,
        "counting": _COUNTING,
        **({} if program is None else {"program": program.digest(), "forms": encode(forms)}),
    }
    return reuse_or_make(path, made_from, make, LatencyTable.load)


def measured_prices(folder: Path, profile: Profile, progress: Progress) -> Price:
    """Return prices that are measured when a model is first seen, all attention kinds at once."""

    def price(model: ModelConfig) -> LatencyTable:
        kinds = tuple(KINDS.values())
        model = replace(model, attention=kinds[0])  # changes no price
        name = content_digest({"model": encode(model), "counting": _COUNTING})
        path = folder / f"{name}.json"
        table = price_once(path, model, profile, kinds, progress).value
        assert table is not None
        return table

    return price

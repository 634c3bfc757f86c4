"""The engine that runs a program fastest, found by trying: ring, truncation, fraction bits.

Every candidate must first be valid: nothing may wrap around its ring, local
truncation must be safe, and its rounding must keep the program's error budget.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mpcvit.artifacts.profile import NetworkLink, Profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.artifacts.record import StageCost
from mpcvit.errors import UserError
from mpcvit.lowering.engine import LEAST_SAFE_BITS, EngineChoice, choose_engine, safe_bits
from mpcvit.lowering.lower import products_of, relative_error
from mpcvit.lowering.program import SecureProgram
from mpcvit.secure.reuse import LEAST_RUNS
from mpcvit.secure.run import run

Progress = Callable[[str, int, int], None]

_JUDGED = 64  # images that rounding is judged by
_FRACTION_BITS = {64: (20, 18, 16), 128: (30, 26, 22)}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An engine, what a batch of many costs on it, or why it cannot be had."""

    engine: EngineChoice
    cost: StageCost | None = None
    refused: str = ""

    def seconds(self, network: NetworkLink) -> float:
        return float("inf") if self.cost is None else self.cost.modelled_s(network)

    def describe(self, network: NetworkLink, batch_size: int) -> str:
        engine = self.engine
        name = (
            f"{engine.ring_bits} bits, {engine.fraction_bits} of fraction, "
            f"{engine.truncation.value} truncation"
        )
        if self.cost is None:
            return f"{name}: {self.refused}"
        return (
            f"{name}: {self.seconds(network) / batch_size:.2f} s an image modelled, "
            f"{self.cost.exchanges:,} exchanges, {self.cost.sent_bytes / 1e6:,.1f} MB "
            f"a batch of {batch_size}"
        )


def tune(
    program: SecureProgram,
    images: np.ndarray,
    profile: Profile,
    *,
    batch_size: int = 1,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """A program with the engine that is fastest over the profile's network, and why.

    `images` are normalised, as `program.preprocess` makes them.
    """
    validity = _Validity(program, images[:_JUDGED], profile)
    trials, families = [], list(_families(profile))
    for index, family in enumerate(families):
        trial = validity.settle(family)
        if not trial.refused:
            trial = replace(trial, cost=_steady_cost(program, trial.engine, profile, batch_size))
        trials.append(trial)
        progress("trying engines", index + 1, len(families))
    best = min(trials, key=lambda trial: trial.seconds(profile.network))
    if best.cost is None:
        reasons = "; ".join(trial.describe(profile.network, batch_size) for trial in trials)
        raise UserError(f"no engine can run this program: {reasons}")
    lines = [trial.describe(profile.network, batch_size) for trial in trials]
    calibration = replace(program.calibration, engine_reason="\n".join(lines))
    return replace(program, engine=best.engine, calibration=calibration)


def _families(profile: Profile) -> Iterator[EngineChoice]:
    """What a protocol offers; fraction bits are settled afterwards, as they cost nothing."""
    if not profile.protocol.truncates_locally:
        yield choose_engine(profile)
        return
    for ring_bits, truncation in ((128, Truncation.LOCAL), (64, Truncation.FAITHFUL)):
        yield EngineChoice(
            ring_bits=ring_bits,
            fraction_bits=_FRACTION_BITS[ring_bits][0],
            truncation=truncation,
            reuse_weight_masks=True,
        )


class _Validity:
    """What a program asks of any engine, found once."""

    def __init__(self, program: SecureProgram, images: np.ndarray, profile: Profile) -> None:
        self._program, self._images, self._profile = program, images, profile
        self._products = products_of(program, images[:8])
        self._exact = program(images)
        self._errors: dict[int, float] = {}

    def settle(self, family: EngineChoice) -> Trial:
        """The most fraction bits of a family that are valid, or why none are."""
        refused = ""
        for bits in _FRACTION_BITS[family.ring_bits]:
            engine = replace(family, fraction_bits=bits)
            if not (refused := self._refuse(engine)):
                return Trial(engine=engine)
        return Trial(engine=family, refused=refused)

    def _refuse(self, engine: EngineChoice) -> str:
        largest = self._products["largest"]
        if largest >= engine.apply(self._profile).magnitude_limit:
            return f"a product of {largest:.3g} would wrap around the ring"
        if (safe := safe_bits(engine, **self._products)) < LEAST_SAFE_BITS:
            return f"truncation would ruin one inference in 2^{safe:.0f}"
        if (error := self._rounding(engine)) > self._program.calibration.error_budget:
            return f"rounding changes the logits by {error:.2g} of their spread"
        return ""

    def _rounding(self, engine: EngineChoice) -> float:
        bits = engine.fraction_bits
        if bits not in self._errors:
            rounded = replace(self._program, engine=engine).in_fixed_point(self._images)
            self._errors[bits] = relative_error(rounded, self._exact)
        return self._errors[bits]


def _steady_cost(
    program: SecureProgram, engine: EngineChoice, profile: Profile, batch_size: int
) -> StageCost:
    """Of a batch in a session of many, counted in the simulator."""
    size = program.model.image_size
    pixels = np.zeros((LEAST_RUNS * batch_size, size, size, program.model.channels), np.uint8)
    record = run(
        replace(program, engine=engine), pixels, profile, batch_size=batch_size, simulate=True
    ).record
    return record.batches[-1].total

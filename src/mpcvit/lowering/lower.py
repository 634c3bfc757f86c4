"""`mpcvit.lower`: a trained checkpoint becomes a SecureProgram."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from mpcvit.checkpoint import Checkpoint
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.lowering import ERROR_BUDGET
from mpcvit.lowering.calibrate import calibrate, run_in_batches
from mpcvit.lowering.choose import Margins, choose, choose_within
from mpcvit.lowering.engine import choose_engine, require_safe
from mpcvit.lowering.fold import fold
from mpcvit.lowering.functions import functions_of
from mpcvit.lowering.network import forward
from mpcvit.lowering.passes import ALL_PASSES, Passes
from mpcvit.lowering.plan import Plan
from mpcvit.lowering.program import Calibration, SecureProgram
from mpcvit.lowering.values import observe
from mpcvit.profile import SECURE_DEFAULT, Profile, load_profile

Progress = Callable[[str, int, int], None]

_JUDGED = 256  # images that a choice of stand-ins is judged by
_WATCHED = 8  # images whose every product is looked at
_ROOM = 64.0  # how much larger than theirs other images' products may be


def lower(
    model: Any,
    images: Any,
    profile: str | Path | Profile = SECURE_DEFAULT,
    *,
    error_budget: float = ERROR_BUDGET,
    margins: Margins | None = None,
    passes: Passes = ALL_PASSES,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """Turn a model into a program of few exchanges, calibrated on images.

    `model` is a checkpoint, its file or a classifier; `images` are files or uint8
    arrays [height, width, channel], of the kind that the program will see. What
    calibration found, the intervals of the stand-ins, becomes public with the
    program's use; weights and images do not.
    `error_budget` bounds what all stand-ins together may change: the root mean
    square of the logits' errors over the images, in parts of their spread.
    `passes` switches rewrites off, to measure what each is worth.
    """
    checkpoint, settings = _checkpoint(model), load_profile(profile)
    config, architecture = checkpoint.model, checkpoint.architecture
    inputs = make_inputs(images, config, checkpoint.data).images
    if not len(inputs):
        raise UserError("there is no image to calibrate with")
    if not error_budget > 0:
        raise UserError(f"an error budget must be positive, not {error_budget:g}")
    weights = fold(config, architecture, checkpoint.parameters, passes)
    progress("calibrating", 0, len(inputs))
    ranges, exact = calibrate(
        config,
        architecture,
        weights,
        np.asarray(inputs),
        lambda done: progress("calibrating", done, len(inputs)),
        passes=passes,
    )
    judged = min(len(inputs), _JUDGED)

    def measure(plan: Plan) -> float:
        functions = functions_of(plan, config, architecture)

        def network(batch: Array) -> Array:
            return forward(config, architecture, functions, passes, weights, batch)

        return relative_error(run_in_batches(network, inputs[:judged]), exact[:judged])

    choice = choose_within(
        error_budget,
        lambda tolerances: replace(choose(config, ranges, tolerances, margins), passes=passes),
        measure,
        lambda tried: progress("choosing stand-ins", tried, tried + 1),
    )
    program = SecureProgram(
        model=config,
        architecture=architecture,
        data=checkpoint.data,
        classes=checkpoint.classes,
        plan=choice.plan,
        engine=choose_engine(settings),
        calibration=Calibration(
            images=len(inputs), error_budget=error_budget, error=float(f"{choice.error:.3g}")
        ),
        parameters=weights,
        provenance=checkpoint.provenance,
    )
    require_safe(program.engine, **products_of(program, inputs[:_WATCHED]))
    return program


def relative_error(found: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square of a difference, in parts of the exact values' standard deviation.

    >>> relative_error(np.array([1.0, 3.0]), np.array([2.0, 4.0]))
    1.0
    """
    error = np.sqrt(np.mean((np.asarray(found, np.float64) - exact) ** 2))
    return float(error / np.std(exact))


def products_of(program: SecureProgram, images: np.ndarray) -> dict[str, float]:
    """How many numbers an inference truncates, and the largest of them, with room to spare."""
    products = ("mul", "dot_general")
    _, values = observe(program.logits, program.parameters, images, only=products)
    return {
        "products": sum(value.size for value in values) / len(images),
        "largest": _ROOM * max(value.largest for value in values),
    }


def _checkpoint(model: Any) -> Checkpoint:
    if isinstance(model, str | Path):
        return Checkpoint.load(Path(model))
    return model if isinstance(model, Checkpoint) else model.checkpoint

"""`mpcvit.lower`: a trained checkpoint becomes a SecureProgram."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jax import Array

from mpcvit.artifacts.config import ModelConfig, NormForm
from mpcvit.artifacts.profile import SECURE_DEFAULT, Profile, load_profile
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.lowering import ERROR_BUDGET
from mpcvit.lowering.calibrate import calibrate, run_in_batches
from mpcvit.lowering.choose import Margins, Tolerances, choose, choose_within
from mpcvit.lowering.engine import choose_engine, require_safe
from mpcvit.lowering.fold import Weights, fold
from mpcvit.lowering.functions import functions_of
from mpcvit.lowering.network import forward
from mpcvit.lowering.odd_pictures import odd_pictures
from mpcvit.lowering.plan import Plan, Trust, place_of
from mpcvit.lowering.program import Calibration, SecureProgram
from mpcvit.lowering.values import observe
from mpcvit.model.checkpoint import Checkpoint

Progress = Callable[[str, int, int], None]

_JUDGED = 256  # images that a choice of stand-ins is judged by
_WATCHED = 8  # images whose every product is looked at
_JUDGED_REACH = 64  # images whose contrast is raised
_CONTRASTS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_NORM_ERROR = 0.05  # of a norm's stand-in, which its length may be off by
_ROOM = 64.0  # how much larger than theirs other images' products may be


def lower(
    model: Any,
    images: Any,
    profile: str | Path | Profile = SECURE_DEFAULT,
    *,
    error_budget: float = ERROR_BUDGET,
    margins: Margins | None = None,
    guard: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """Turn a model into a program of few exchanges, calibrated on images.

    `model` is a checkpoint, its file or a classifier; `images` are files or uint8
    arrays [height, width, channel], of the kind that the program will see. What
    calibration found, the intervals of the stand-ins, becomes public with the
    program's use; weights and images do not.
    `error_budget` bounds what all stand-ins together may change: the root mean
    square of the logits' errors over the images, in parts of their spread.
    With `guard`, private runs refuse to answer where a value left an interval. Without
    it, they look at logits alone. Beside the images, intervals cover flat, checkerboard, noise
    and saturated pictures as far as that is cheap.
    """
    checkpoint, settings = _checkpoint(model), load_profile(profile)
    config, architecture = checkpoint.model, checkpoint.architecture
    inputs = make_inputs(images, config, checkpoint.data).images
    strange = odd_pictures(config.image_size, config.channels)
    odd = make_inputs(list(strange.values()), config, checkpoint.data).images
    if not len(inputs):
        raise UserError("there is no image to calibrate with")
    if not error_budget > 0:
        raise UserError(f"an error budget must be positive, not {error_budget:g}")
    weights = fold(config, architecture, checkpoint.parameters)
    progress("calibrating", 0, len(inputs))
    ranges, exact = calibrate(
        config,
        architecture,
        weights,
        np.asarray(inputs),
        lambda done: progress("calibrating", done, len(inputs)),
    )
    odd_ranges, odd_exact = calibrate(config, architecture, weights, odd)
    judged = min(len(inputs), _JUDGED)
    widest = [
        _widest_activation(config, weights[f"blocks_{index}"]) for index in range(config.depth)
    ]

    def fit(tolerances: Tolerances) -> Plan:
        return choose(config, ranges, tolerances, margins, odd=odd_ranges, widest=widest)

    def measure(plan: Plan) -> float:
        functions = functions_of(plan, config, architecture)

        def network(batch: Array) -> Array:
            return forward(config, architecture, functions, weights, batch)

        return relative_error(run_in_batches(network, inputs[:judged]), exact[:judged])

    choice = choose_within(
        error_budget,
        fit,
        measure,
        lambda tried: progress("choosing stand-ins", tried, tried + 1),
    )
    program = SecureProgram(
        model=config,
        architecture=architecture,
        data=checkpoint.data,
        classes=checkpoint.classes,
        plan=replace(
            choice.plan,
            trust=Trust(
                bound=_largest_logit(config, weights["head"], [exact, odd_exact]),
                guard=guard,
                assured=_assured(choice.plan, widest),
            ),
        ),
        engine=choose_engine(settings),
        calibration=Calibration(
            images=len(inputs), error_budget=error_budget, error=float(f"{choice.error:.3g}")
        ),
        parameters=weights,
        provenance=checkpoint.provenance,
    )
    require_safe(program.engine, **products_of(program, inputs[:_WATCHED]))
    judged_inputs = np.concatenate([inputs[:judged], odd])
    program = _doubting(program, judged_inputs, np.concatenate([exact[:judged], odd_exact]))
    calibration = replace(
        program.calibration,
        reach=_reach(program, inputs[:_JUDGED_REACH]),
        odd=tuple(
            f"{name}: {verdict}"
            for name, verdict in zip(strange, _verdicts(program, odd, odd_exact), strict=True)
        ),
    )
    return replace(program, calibration=calibration)


def _widest_activation(config: ModelConfig, weights: Weights) -> float | None:
    """What an activation is given at most, as long as the norm before it keeps its interval.

    |u W_j + b_j| <= |u| |W_j| + |b_j|,   |u| = sqrt(width)
    """
    if config.norm is NormForm.LINEAR or "up" not in weights["mlp"]:
        return None
    up = weights["mlp"]["up"]
    return _widest(config, up["kernel"], up["bias"])


def _widest(config: ModelConfig, kernel: np.ndarray, bias: np.ndarray) -> float:
    length = math.sqrt(config.width) * (1 + _NORM_ERROR)
    return float((length * np.linalg.norm(kernel, axis=0) + np.abs(bias)).max())


def _largest_logit(config: ModelConfig, weights: Weights, seen: Sequence[np.ndarray]) -> float:
    """What a logit cannot exceed; after a linear norm, far more than any did."""
    if config.norm is NormForm.LINEAR:
        return _ROOM * max(float(np.abs(logits).max()) for logits in seen)
    return _widest(config, weights["kernel"], weights["bias"])


def _assured(plan: Plan, widest: Sequence[float | None]) -> tuple[str, ...]:
    """Activations whose intervals hold whatever the norm before them can give."""
    return tuple(
        place_of(index, "activation")
        for index, (layer, most) in enumerate(zip(plan.layers, widest, strict=True))
        if layer.activation is not None
        and layer.norm2 is not None
        and layer.norm2.max_error <= _NORM_ERROR
        and most is not None
        and layer.activation.bound >= most
    )


def _doubting(program: SecureProgram, images: np.ndarray, exact: np.ndarray) -> SecureProgram:
    """A program that knows by how much its leads were off, where it gives an answer at all."""
    found = program.judge(images)
    rows = np.arange(len(exact))
    best = found.logits.argmax(axis=1)
    lead = found.logits[rows, best][:, None] - found.logits
    error = np.abs(lead - (exact[rows, best][:, None] - exact)).max(axis=1)
    doubt = float(error[found.trusted].max(initial=0.0))
    trust = replace(program.plan.trust, doubt=float(f"{doubt:.3g}"))
    return replace(program, plan=replace(program.plan, trust=trust))


def _reach(program: SecureProgram, images: np.ndarray) -> float:
    """How much stronger the contrast of all these images may be before an interval is left."""
    reach = 0.0
    for factor in _CONTRASTS:
        if not program.judge(images * factor).within.all():
            break
        reach = factor
    return reach


def _verdicts(program: SecureProgram, images: np.ndarray, exact: np.ndarray) -> list[str]:
    """What a private run makes of pictures, compared with the network itself."""
    found = program.judge(images)
    same = found.logits.argmax(axis=1) == exact.argmax(axis=1)
    words = []
    for index in range(len(images)):
        if not found.trusted[index]:
            words.append("refused")
        elif found.close[index]:
            words.append("close")
        else:
            words.append("as the network" if same[index] else "wrong")
    return words


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

"""From a trained checkpoint to a program: fold, calibrate, fit, and judge."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import DataConfig, ModelConfig
from mpcvit.artifacts.engine import choose_engine
from mpcvit.artifacts.forms import NormForm
from mpcvit.artifacts.profile import SECURE_DEFAULT, Profile, load_profile
from mpcvit.artifacts.resolve import forms_of, head_norm_of
from mpcvit.data import Photos, make_inputs
from mpcvit.errors import UserError
from mpcvit.lowering import ERROR_BUDGET
from mpcvit.lowering.approximations import GeluPolynomial
from mpcvit.lowering.calibrate import (
    Progress,
    batches,
    calibrate,
    count_products,
    engine_that_holds,
    measure_error,
    odd_pictures,
    require_safe,
    stage_values,
)
from mpcvit.lowering.fit_plan import fit_plan, search_plan
from mpcvit.lowering.fold import Weights, fold
from mpcvit.lowering.jaxpr_walk import Traced, run_in_numpy
from mpcvit.lowering.network import forward
from mpcvit.lowering.out_of_range import Trust, count_out_of_range
from mpcvit.lowering.program import Calibration, PublicProgram, SecureProgram, shapes_of
from mpcvit.lowering.sites import Plan, exact_functions, site_label
from mpcvit.model.checkpoint import Checkpoint

_JUDGED = 256  # images that a choice of approximations is judged by
_WATCHED = 8  # images whose every product is looked at
_JUDGED_REACH = 64  # images whose contrast is raised
_CONTRASTS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
_NORM_ERROR = 0.05  # of a norm's approximation, which its length may be off by
_ENOUGH = 1024  # images for which the margins of sites were chosen
_HALVINGS = 6  # of their number, after which margins are squared
_ROOM = 64.0  # how much larger than theirs other images' products may be


def lower(
    model: Any,
    images: Any,
    profile: str | Path | Profile = SECURE_DEFAULT,
    *,
    error_budget: float = ERROR_BUDGET,
    guard: bool = True,
    progress: Progress = lambda what, done, total: None,
) -> SecureProgram:
    """Turn a model into a program of few exchanges, calibrated on images.

    `model` is a checkpoint, its file or a classifier. `images` are photos, files or uint8
    arrays [height, width, channel], of the kind that the program will see. The fewer they
    are, the wider are the margins. The intervals of the approximations become public with
    the program's use; weights and images do not.
    `error_budget` bounds the effect of all approximations together: the root mean
    square of the logits' errors over the images, in parts of their spread.
    With `guard`, private runs refuse to answer where a value left an interval. Without
    it, they look at logits alone. Beside the images, intervals cover flat, checkerboard, noise
    and saturated pictures as far as that is cheap.
    """
    if not error_budget > 0:
        raise UserError(f"an error budget must be positive, not {error_budget:g}")
    checkpoint, settings = checkpoint_of(model), load_profile(profile)
    config, architecture = checkpoint.model, checkpoint.architecture
    inputs = (
        images.images
        if isinstance(images, Photos)
        else make_inputs(images, config, checkpoint.data).images
    )
    pictures = odd_pictures(config.image_size, config.channels)
    odd = make_inputs(list(pictures.values()), config, checkpoint.data).images
    weights = fold(config, architecture, checkpoint.parameters)
    progress("calibrating", 0, len(inputs))
    ranges, exact = calibrate(config, architecture, weights, np.asarray(inputs), progress)
    odd_ranges, odd_exact = calibrate(config, architecture, weights, odd)
    engine = engine_that_holds(
        partial(stage_values, config, architecture, exact_functions(config, architecture), weights),
        {
            **_most_extreme(inputs, exact),
            **dict(zip(pictures, odd, strict=True)),
            **_inverted(inputs[:_WATCHED], checkpoint.data),
        },
        choose_engine(settings),
        settings,
    )
    widening = widening_of(len(inputs))
    judged, widest = min(len(inputs), _JUDGED), _widest_activations(config, architecture, weights)

    fitted = search_plan(
        error_budget,
        partial(
            fit_plan,
            config,
            architecture,
            ranges,
            odd=odd_ranges,
            widest=widest,
            widening=widening,
        ),
        partial(measure_error, config, architecture, weights, inputs[:judged], exact[:judged]),
        progress,
    )
    trust = Trust(
        bound=_largest_logit(config, architecture, weights["head"], [exact, odd_exact]),
        guard=guard,
        assured=_assured(fitted.plan, widest),
    )
    program = SecureProgram(
        public=PublicProgram(
            model=config,
            architecture=architecture,
            data=replace(checkpoint.data, path=""),
            classes=checkpoint.classes,
            plan=fitted.plan,
            engine=engine,
            trust=trust,
            shapes=shapes_of(weights),
        ),
        parameters=weights,
        calibration=Calibration(
            images=len(inputs), error_budget=error_budget, error=float(f"{fitted.error:.3g}")
        ),
        provenance=checkpoint.provenance,
    )
    require_safe(program.engine, **products_of(program, inputs[:_WATCHED]))
    judged_inputs = np.concatenate([inputs[:judged], odd])
    doubt = _doubt(program, judged_inputs, np.concatenate([exact[:judged], odd_exact]))
    agreeing, left = _agreement(program, inputs, exact)
    reach, leaving = _reach(program, inputs[:_JUDGED_REACH])
    calibration = replace(
        program.calibration,
        reach=reach,
        leaving=leaving,
        widening=float(f"{widening:.3g}"),
        agreeing=agreeing,
        left=left,
        odd=tuple(
            f"{name}: {verdict}"
            for name, verdict in zip(
                pictures, _verdicts(program, odd, odd_exact, doubt), strict=True
            )
        ),
    )
    # changed last, as a changed program is compiled again to be judged
    program = program.changed(trust=replace(trust, doubt=doubt))
    return replace(program, calibration=calibration)


def widening_of(images: int) -> float:
    """Return the power to which margins are raised: 1 for many images, 2 for sixteen.

    >>> widening_of(2048), widening_of(1024), widening_of(16)
    (1.0, 1.0, 2.0)
    """
    return 1 + max(0.0, math.log2(_ENOUGH / images) / _HALVINGS)


def _widest_activations(
    config: ModelConfig, architecture: Architecture, weights: Weights
) -> dict[str, float]:
    """Return, by label, the largest value that an activation can be given.

    It holds as long as the norm before the MLP keeps its interval:

        |u W_j + b_j| <= |u| |W_j| + |b_j|,   |u| = sqrt(width)
    """
    mlps = {
        index: weights[f"blocks_{index}"]["mlp"]
        for index, form in enumerate(forms_of(config, architecture))
        if form.norm2 is NormForm.LAYER
    }
    return {
        site_label(index, "activation"): _widest(mlp["up"])
        for index, mlp in mlps.items()
        if "up" in mlp
    }


def _widest(linear: Weights) -> float:
    length = math.sqrt(len(linear["kernel"])) * (1 + _NORM_ERROR)
    columns = np.linalg.norm(linear["kernel"], axis=0)
    return float((length * columns + np.abs(linear["bias"])).max())


def _largest_logit(
    config: ModelConfig, architecture: Architecture, head: Weights, seen: Sequence[np.ndarray]
) -> float:
    """Return what a logit cannot exceed; after a norm that folds, far more than any did."""
    if head_norm_of(config, architecture) is not NormForm.LAYER:
        return _ROOM * max(float(np.abs(logits).max()) for logits in seen)
    return _widest(head)


def _assured(plan: Plan, widest: Mapping[str, float]) -> tuple[str, ...]:
    """Return the activations whose intervals hold whatever the norm before them can give."""
    assured = []
    for label, most in widest.items():
        activation, norm = plan.get(label), plan.get(label.replace("activation", "norm2"))
        if (
            isinstance(activation, GeluPolynomial)
            and norm is not None
            and norm.max_error <= _NORM_ERROR
            and activation.bound >= most
        ):
            assured.append(label)
    return tuple(assured)


def _doubt(program: SecureProgram, images: np.ndarray, exact: np.ndarray) -> float:
    """Return by how much a program's leads were off, where it gives an answer at all."""
    judgement, rows = program.judge_all(images), np.arange(len(exact))
    best = judgement.logits.argmax(axis=1)
    lead = judgement.logits[rows, best][:, None] - judgement.logits
    error = np.abs(lead - (exact[rows, best][:, None] - exact)).max(axis=1)
    return float(f"{float(error[judgement.trusted].max(initial=0.0)):.3g}")


def _agreement(program: SecureProgram, images: np.ndarray, exact: np.ndarray) -> tuple[int, int]:
    """Return how many images get the network's class, and how many leave an interval."""
    judgement = program.judge_all(images)
    agreeing = judgement.logits.argmax(axis=1) == exact.argmax(axis=1)
    return int(agreeing.sum()), int((~judgement.within).sum())


def _reach(program: SecureProgram, images: np.ndarray) -> tuple[float, tuple[str, ...]]:
    """Return how much stronger contrast may be, and the labels whose intervals are left then."""
    reach = 0.0
    for factor in _CONTRASTS:
        stronger = images * factor
        if not program.judge_all(stronger).within.all():
            return reach, leaving(program, stronger)
        reach = factor
    return reach, ()


def leaving(program: SecureProgram, images: np.ndarray) -> tuple[str, ...]:
    """Return the labels at which some value leaves its interval, counted by NumPy."""

    def count(weights: Weights, images: Any) -> dict[str, Any]:
        functions, counts = count_out_of_range(program.plan)
        forward(program.model, program.architecture, functions, weights, images)
        return counts

    traced: dict[int, Traced] = {}
    left: dict[str, bool] = {}
    for batch in batches(images):
        arguments = (program.parameters, batch)
        if len(batch) not in traced:  # all batches but the last have one size
            traced[len(batch)] = jax.make_jaxpr(count, return_shape=True)(*arguments)
        for label, by_image in run_in_numpy(traced[len(batch)], *arguments).items():
            left[label] = left.get(label, False) or by_image[:, 0].any()
    return tuple(label for label, is_left in left.items() if is_left)


def _verdicts(
    program: SecureProgram, images: np.ndarray, exact: np.ndarray, doubt: float
) -> list[str]:
    """Return what a private run makes of pictures, compared with the network itself."""
    judgement = replace(program.judge_all(images), doubt=doubt)
    same = judgement.logits.argmax(axis=1) == exact.argmax(axis=1)
    words = []
    for index in range(len(images)):
        if not judgement.trusted[index]:
            words.append("refused")
        elif judgement.close[index]:
            words.append("close")
        else:
            words.append("as the network" if same[index] else "wrong")
    return words


def products_of(program: SecureProgram, images: np.ndarray) -> dict[str, float]:
    """Return how many numbers an inference truncates, and the largest, with room to spare."""
    values = stage_values(
        program.model, program.architecture, program.plan, program.parameters, images
    )
    largest = max(value.largest for stage in values.values() for value in stage)
    return {"products": count_products(values, len(images)), "largest": _ROOM * largest}


def _most_extreme(images: np.ndarray, logits: np.ndarray) -> dict[str, np.ndarray]:
    """Return the images with the largest logits, or with none that are numbers."""
    sizes = np.nan_to_num(np.abs(logits).max(axis=1), nan=np.inf)
    places = np.argsort(-sizes, kind="stable")[:_WATCHED]
    return {f"calibration image {place}": np.asarray(images[place]) for place in places}


def _inverted(images: np.ndarray, data: DataConfig) -> dict[str, np.ndarray]:
    """Return the negatives of normalised images."""
    mean, std = np.asarray(data.mean, np.float32), np.asarray(data.std, np.float32)
    negatives = (1 - 2 * mean) / std - np.asarray(images)
    return {f"inverted {place}": picture for place, picture in enumerate(negatives)}


def checkpoint_of(model: Any) -> Checkpoint:
    """Return the checkpoint of a file, a classifier, or itself."""
    if isinstance(model, str | Path):
        return Checkpoint.load(Path(model))
    return model if isinstance(model, Checkpoint) else model.checkpoint

"""`mpcvit.lower`: a trained checkpoint becomes a SecureProgram."""

from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.checkpoint import Checkpoint
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.lowering.calibrate import calibrate
from mpcvit.lowering.choose import Margins, Tolerances, choose
from mpcvit.lowering.engine import choose_engine, require_safe
from mpcvit.lowering.fold import fold
from mpcvit.lowering.program import SecureProgram
from mpcvit.lowering.values import observe
from mpcvit.profile import SECURE_DEFAULT, Profile, load_profile

_WATCHED = 8  # images whose every product is looked at
_ROOM = 64.0  # how much larger than theirs other images' products may be


def lower(
    model: Any,
    images: Any,
    profile: str | Path | Profile = SECURE_DEFAULT,
    *,
    tolerances: Tolerances | None = None,
    margins: Margins | None = None,
) -> SecureProgram:
    """Turn a model into a program of few exchanges, calibrated on images.

    `model` is a checkpoint, its file or a classifier; `images` are files or uint8
    arrays [height, width, channel], of the kind that the program will see. What
    calibration found, the intervals of the stand-ins, becomes public with the
    program's use; weights and images do not.
    """
    checkpoint = _checkpoint(model)
    settings = load_profile(profile)
    config, architecture = checkpoint.model, checkpoint.architecture
    inputs = make_inputs(images, config, checkpoint.data).images
    if not len(inputs):
        raise UserError("there is no image to calibrate with")
    weights = fold(config, architecture, checkpoint.parameters)
    ranges, _ = calibrate(config, architecture, weights, np.asarray(inputs))
    program = SecureProgram(
        model=config,
        architecture=architecture,
        data=checkpoint.data,
        classes=checkpoint.classes,
        plan=choose(config, ranges, tolerances, margins),
        engine=choose_engine(settings),
        parameters=weights,
        provenance=checkpoint.provenance,
    )
    require_safe(program.engine, **products_of(program, inputs[:_WATCHED]))
    return program


def products_of(program: SecureProgram, images: np.ndarray) -> dict[str, float]:
    """How many numbers an inference truncates, and the largest of them, with room to spare."""
    _, values = observe(program.logits, program.parameters, images)
    own = [value for value in values if value.operation in ("mul", "dot_general")]
    return {
        "products": sum(value.size for value in own) / len(images),
        "largest": _ROOM * max(value.largest for value in own),
    }


def _checkpoint(model: Any) -> Checkpoint:
    if isinstance(model, str | Path):
        return Checkpoint.load(Path(model))
    return model if isinstance(model, Checkpoint) else model.checkpoint

"""`mpcvit.lower`: a trained checkpoint becomes a SecureProgram."""

from pathlib import Path
from typing import Any

import numpy as np

from mpcvit.checkpoint import Checkpoint
from mpcvit.data import make_inputs
from mpcvit.errors import UserError
from mpcvit.lower.calibrate import calibrate
from mpcvit.lower.choose import Margins, Tolerances, choose
from mpcvit.lower.engine import choose_engine
from mpcvit.lower.fold import fold
from mpcvit.lower.program import SecureProgram
from mpcvit.profile import SECURE_DEFAULT, Profile, load_profile


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
    return SecureProgram(
        model=config,
        architecture=architecture,
        data=checkpoint.data,
        classes=checkpoint.classes,
        plan=choose(config, ranges, tolerances, margins),
        engine=choose_engine(settings),
        parameters=weights,
        provenance=checkpoint.provenance,
    )


def _checkpoint(model: Any) -> Checkpoint:
    if isinstance(model, str | Path):
        return Checkpoint.load(Path(model))
    return model if isinstance(model, Checkpoint) else model.checkpoint

"""The plan that lowering chose for a small network: python -m tests.golden.plans.make

Make it again only for a change that is meant to move plans, and say so in the changelog.
"""

import json
from pathlib import Path

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture
from mpcvit.codec import encode
from mpcvit.kinds import table
from mpcvit.lowering.lower import lower
from tests.models import random_pixels, small_checkpoint, small_config

FILE = Path(__file__).parent / "six_kinds.json"
ERROR_BUDGET = 0.02  # below what the loosest tolerances give, so that some are tightened


def choose_plan():
    """Lower two layers of three kinds each; return the plan and its error as plain data."""
    config = small_config(mlp_ratio=1.2)
    first = (table.SOFTMAX, table.RELU_SOFTMAX, table.XNORM)
    second = (table.THE_X, table.QUAD2, table.SCALING)
    layers = tuple(LayerArchitecture(heads=heads) for heads in (first, second))
    checkpoint = small_checkpoint(config, Architecture(layers=layers))
    images = list(random_pixels(config, 64))
    program = lower(checkpoint, images, "semi2k", error_budget=ERROR_BUDGET)
    return encode({"plan": program.plan, "error": program.calibration.error})


if __name__ == "__main__":
    FILE.write_text(json.dumps(choose_plan(), indent=1) + "\n")

"""Pictures for the programs that ship: what nobody trained on, and the samples that ship too."""

import numpy as np

from mpcvit.data import decode_image
from mpcvit.demo.showcase import SHIPPED, Showcase
from mpcvit.lowering.calibrate import odd_pictures

SIZE = 32


def samples():
    showcase = Showcase.load(SHIPPED)
    return [
        decode_image(SHIPPED / sample.file, channels=3, where=sample.file)
        for sample in showcase.samples
    ]


def random_pictures(count=200):
    """Noise of any brightness, contrast and grain."""
    rng = np.random.default_rng(5)
    for _ in range(count):
        grain = int(rng.choice([1, 2, 4, 8, 16]))
        side = SIZE // grain
        noise = rng.random((side, side, 3)).repeat(grain, axis=0).repeat(grain, axis=1)
        middle, contrast = rng.random(), 2 * rng.random()
        yield (255 * np.clip(middle + contrast * (noise - 0.5), 0, 1)).astype(np.uint8)


def pictures():
    rows, _ = np.indices((SIZE, SIZE))
    stripes = [
        np.repeat(((rows // side) % 2 * 255).astype(np.uint8)[..., None], 3, axis=2)
        for side in (1, 2, 4)
    ]
    shown = samples()
    return [
        *odd_pictures(SIZE, 3).values(),
        *stripes,
        *[255 - picture for picture in shown],
        *[picture[::-1] for picture in shown],
        *random_pictures(),
    ]

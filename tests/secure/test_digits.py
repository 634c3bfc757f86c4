"""A trained model on real images: the private answer is the plain one."""

import pytest

from mpcvit.artifacts.config import load_config
from mpcvit.classifier import Classifier
from mpcvit.data import load_dataset
from mpcvit.secure.run import run
from mpcvit.train.supervised import train
from tests.configs import TINY

IMAGES = 64


@pytest.mark.long
def test_top1_agrees(tmp_path):
    config = load_config(TINY)
    model = config.model
    dataset = load_dataset(
        config.data, image_size=model.image_size, channels=model.channels, classes=model.classes
    )
    checkpoint = train(config, dataset, tmp_path / "run")
    pixels = dataset.test.images[:IMAGES]
    result = run(checkpoint, pixels, "semi2k", batch_size=IMAGES, reveal="logits", simulate=True)
    plain = Classifier(checkpoint)
    expected = plain(plain.preprocess(list(pixels))).argmax(axis=1)
    assert (result.logits.argmax(axis=1) == expected).sum() >= IMAGES - 1

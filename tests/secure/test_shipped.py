"""The programs that ship, on SPU: the network's class, or a word, for whatever picture comes."""

import numpy as np
import pytest

import mpcvit
from mpcvit.classifier import Classifier
from mpcvit.demo.showcase import SHIPPED, model_in
from mpcvit.lowering.calibrate import odd_pictures
from mpcvit.lowering.program import SecureProgram
from mpcvit.model.checkpoint import Checkpoint
from tests.pictures import SIZE, pictures


def odd():
    return list(odd_pictures(SIZE, 3).values())


@pytest.mark.long
@pytest.mark.parametrize("network", ["softmax", "mpcvit"])
@pytest.mark.parametrize("sent", [odd, pictures])
def test_the_class_of_the_network_or_a_word(network, sent):
    program = SecureProgram.load(model_in(SHIPPED, network, "lowered"))
    classifier = Classifier(Checkpoint.load(model_in(SHIPPED, network, "plain")))
    images = np.stack(sent())
    expected = classifier(classifier.preprocess(images)).argmax(axis=1)
    found = mpcvit.run(program, images, "semi2k", batch_size=20, simulate=True)
    sure = set(range(len(images))) - set(found.refused) - set(found.close)
    assert sure
    for index in sure:
        assert found.likeliest[index] == (program.classes[expected[index]],)

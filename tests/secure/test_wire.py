"""What the parties tell each other, message by message."""

from dataclasses import replace

import numpy as np
import pytest

from mpcvit import Classifier
from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.record import Reveal
from mpcvit.kinds import table
from mpcvit.secure.parties.events import Journal
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.run import simulate
from mpcvit.secure.spu.link import Channel
from mpcvit.secure.spu.shares import unpack
from tests.models import random_images, small_checkpoint, small_config
from tests.tolerances import FXP18, assert_close

CONFIG = small_config(depth=1)
ARCHITECTURE = Architecture.uniform(table.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)
BATCHES = 2
# versions and profile, request, program; then one message of shares for each batch
BEFORE_IMAGES = 3


@pytest.fixture
def sent(monkeypatch):
    """All messages of our own, as (sender, receiver, bytes)."""
    messages = []
    send = Channel.send

    def record(self, to, message):
        messages.append((self.role, to, message))
        send(self, to, message)

    monkeypatch.setattr(Channel, "send", record)
    return messages


def run(images, profile="semi2k"):
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    profile = load_profile(profile)
    journal = Journal()
    simulate(
        lambda: checkpoint,
        lambda report: lambda card: images,
        profile,
        batch_size=1,
        journal=journal,
        reveal=Reveal.LOGITS,
    )
    return [answer.values for answer in journal.answers]


def to_model_owner(sent):
    return [message for _, to, message in sent if to is Role.MODEL_OWNER]


def shares_of_images(sent):
    """The bytes of the model owner's shares."""
    return [
        b"".join(unpack(message, Role.DATA_OWNER)[0].share_chunks)
        for message in to_model_owner(sent)[BEFORE_IMAGES:]
    ]


def test_the_model_owner_gets_shares_of_images_and_nothing_else(sent):
    run(np.asarray(random_images(CONFIG, BATCHES)))
    received = to_model_owner(sent)
    # so it has no share of the output but its own, and cannot open it
    assert len(received) == BEFORE_IMAGES + BATCHES
    assert len(shares_of_images(sent)) == BATCHES


def test_only_the_data_owner_gets_output_shares(sent):
    run(np.asarray(random_images(CONFIG, BATCHES)))
    to_data_owner = [message for _, to, message in sent if to is Role.DATA_OWNER]
    # versions and profile, card, program, weights of three stages, then the outputs
    assert len(to_data_owner) == 3 + 3 + BATCHES


def test_lengths_do_not_depend_on_the_image(sent):
    lengths = []
    for images in (np.zeros((2, 6, 6, 3), np.float32), np.asarray(random_images(CONFIG, 2))):
        sent.clear()
        run(images)
        lengths.append([len(message) for message in to_model_owner(sent)])
    assert lengths[0] == lengths[1]


def test_the_same_image_never_looks_the_same(sent):
    image = np.asarray(random_images(CONFIG, 1))
    run(np.concatenate([image, image]))
    first, second = shares_of_images(sent)
    assert first != second
    sent.clear()
    run(np.concatenate([image, image]))
    assert not {first, second} & set(shares_of_images(sent))


def test_shares_look_uniform_whatever_the_image(sent):
    ones = np.ones((BATCHES, CONFIG.image_size, CONFIG.image_size, 3), np.float32)
    run(ones)
    encoded = np.int64(2**18).tobytes()
    bits = []
    for share in shares_of_images(sent):
        assert encoded not in share
        assert np.float32(1).tobytes() * 2 not in share
        values = share[-8 * ones[0].size :]
        bits.append(np.unpackbits(np.frombuffer(values, np.uint8)))
    share_of_ones = np.concatenate(bits).mean()
    # fair coins: five standard deviations
    assert abs(share_of_ones - 0.5) < 5 * 0.5 / np.sqrt(2 * 8 * 8 * ones[0].size)


def test_weights_travel_once_and_as_shares(sent):
    run(np.asarray(random_images(CONFIG, BATCHES)))
    plain = small_checkpoint(CONFIG, ARCHITECTURE).parameters["embed"]["patch"]["kernel"]
    encoded = np.round(plain.astype(np.float64) * 2**18).astype(np.int64)
    everything = b"".join(message for _, _, message in sent)
    assert plain.tobytes() not in everything
    for row in plain:
        assert row.tobytes() not in everything
    for row in encoded:
        assert row.tobytes() not in everything


def test_weights_that_stay_with_their_owner_do_not_travel_at_all(sent):
    images = np.asarray(random_images(CONFIG, 1))
    found = run(images, replace(load_profile("cheetah"), owned_weights=True))
    to_data_owner = [message for _, to, message in sent if to is Role.DATA_OWNER]
    weights = to_data_owner[3:6]  # of three stages, after versions and profile, card, program
    for message in weights:
        for share in unpack(message, Role.MODEL_OWNER):
            (chunk,) = share.share_chunks
            assert not any(chunk[6:])  # nothing but zeros behind the chunk's header
    assert_close(np.array(found), Classifier(small_checkpoint(CONFIG, ARCHITECTURE))(images), FXP18)

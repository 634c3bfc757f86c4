"""Parties that do not fit each other, or say what makes no sense."""

import json
from dataclasses import replace

import numpy as np
import pytest
import spu
from spu import libspu

from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.profile import Limits, load_profile
from mpcvit.dealer.generator import SEED_BYTES
from mpcvit.kinds import table
from mpcvit.lowering.lower import lower
from mpcvit.secure.card import ModelCard
from mpcvit.secure.errors import PartyError
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.protocol import Request, agree, read_request, run_data_owner, run_model_owner
from mpcvit.secure.spu.engine import run_in_threads
from mpcvit.secure.spu.shares import Sharing, pack, runtime_config, unpack
from tests.models import random_images, random_pixels, small_checkpoint, small_config

CONFIG = small_config(depth=1)
ARCHITECTURE = Architecture.uniform(table.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)
SECRET, PUBLIC = libspu.Visibility.VIS_SECRET, libspu.Visibility.VIS_PUBLIC
PROFILE = replace(load_profile("semi2k"), limits=Limits(silence_s=60.0))
IMPATIENT = replace(PROFILE, limits=Limits(silence_s=1.0))


def ignore(event):
    pass


def as_data_owner(channel, profile=PROFILE):
    images = np.asarray(random_images(CONFIG, 1))
    return run_data_owner(channel, profile, lambda card: images, 1, ignore)


def as_model_owner(channel, profile=PROFILE):
    return run_model_owner(channel, profile, small_checkpoint(CONFIG, ARCHITECTURE), ignore)


def run(model_owner=as_model_owner, data_owner=as_data_owner, profile=PROFILE):
    act = {Role.MODEL_OWNER: model_owner, Role.DATA_OWNER: data_owner}
    return run_in_threads(profile, lambda channel: act[channel.role](channel))


def test_both_values_of_a_difference_are_shown():
    def take_part(channel):
        agree(channel, {"program": "abc" if channel.role is Role.MODEL_OWNER else "xyz"})

    with pytest.raises(PartyError, match="differ in program") as error:
        run_in_threads(PROFILE, take_part)
    assert "the model owner has abc" in str(error.value)
    assert "the data owner has xyz" in str(error.value)


def test_a_peers_endless_answer_is_not_repeated():
    def take_part(channel):
        if channel.role is Role.MODEL_OWNER:
            channel.send_json(Role.DATA_OWNER, {"program": "\033" * 100_000})
        else:
            agree(channel, {"program": "abc"})

    with pytest.raises(PartyError, match="differ in program") as error:
        run_in_threads(PROFILE, take_part)
    assert len(str(error.value)) < 200
    assert "\033" not in str(error.value)


def test_other_fraction_bits_are_noticed_before_anything_secret_moves():
    other = replace(PROFILE, fraction_bits=16)
    with pytest.raises(PartyError, match=r"profile's fraction_bits: .*(18.*16|16.*18)"):
        run(data_owner=lambda channel: as_data_owner(channel, other))


@pytest.mark.parametrize("garbage", [b"\xff\x00garbage", b"[]", b'{"session": 1}', b"[" * 100_000])
def test_garbage_for_terms(garbage):
    with pytest.raises(PartyError, match=r"cannot be understood|differ in"):
        run(model_owner=lambda channel: channel.send(Role.DATA_OWNER, garbage))


def test_silence_ends():
    with pytest.raises(PartyError, match="sent nothing for 1 s"):
        run(
            model_owner=lambda channel: None,
            data_owner=lambda channel: as_data_owner(channel, IMPATIENT),
            profile=IMPATIENT,
        )


@pytest.mark.parametrize(
    "document", [None, [], {}, {"images": 0, "batch_size": 1}, {"images": True, "batch_size": 1}]
)
def test_garbage_for_a_request(document):
    with pytest.raises(PartyError, match="request cannot be understood"):
        read_request(document)


@pytest.fixture(scope="module")
def card():
    checkpoint, pixels = small_checkpoint(CONFIG, ARCHITECTURE), random_pixels(CONFIG, 8)
    return ModelCard.of(lower(checkpoint, list(pixels), "semi2k", error_budget=1.0))


@pytest.mark.parametrize("shapes", [{}, {"embed.kernel": (3, 5)}])
def test_weights_that_do_not_fit_the_network_are_refused(shapes, card):
    """Otherwise a peer's shapes would end this party without a reason."""
    odd = replace(card, public=replace(card.public, shapes=shapes))

    def model_owner(channel):
        agree(channel, agreement_of(PROFILE))
        channel.send_json(Role.DATA_OWNER, odd.to_dict())

    with pytest.raises(PartyError, match="the weights do not fit the network"):
        run(model_owner=model_owner)


def test_a_card_survives_its_own_form_and_no_other():
    card = ModelCard.of(small_checkpoint(CONFIG, ARCHITECTURE))
    document = json.loads(json.dumps(card.to_dict()))
    assert ModelCard.from_dict(document) == card
    public = document["public"]
    assert public["data"]["path"] == ""
    for broken in (
        None,
        {},
        {**document, "format": "other"},
        {**document, "public": {**public, "model": 3}},
        {**document, "public": {**public, "classes": ["one"]}},
        {**document, "public": {**public, "shapes": {"embed.kernel": [10**9, 10**9]}}},
        {
            **document,
            "public": {
                **public,
                "architecture": {"format": "mpcvit-architecture/1", "layers": []},
            },
        },
    ):
        with pytest.raises(PartyError, match="description cannot be used"):
            ModelCard.from_dict(broken)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("model", {"image_size": 80_000}),
        ("model", {"width": 15 * 2000}),
        ("model", {"mlp_ratio": 1e9}),
        (None, {"classes": ["x" * 1000] * 7}),
    ],
)
def test_sizes_that_no_model_has_are_refused_before_they_are_made(section, change):
    document = ModelCard.of(small_checkpoint(CONFIG, ARCHITECTURE)).to_dict()
    public = document["public"]
    changed = change if section is None else {section: {**public[section], **change}}
    with pytest.raises(PartyError, match=r"is not within 1 and|more than"):
        ModelCard.from_dict({**document, "public": {**public, **changed}})


def test_a_client_may_not_ask_for_more_than_it_was_admitted_with():
    admitted = Request(images=1, batch_size=1)
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)

    def owner(channel):
        run_model_owner(channel, PROFILE, checkpoint, ignore, announced=admitted)

    def two_images(channel):
        agree(channel, agreement_of(PROFILE))
        channel.receive_json(Role.MODEL_OWNER)  # what the model looks like
        channel.send_json(Role.MODEL_OWNER, {"images": 2, "batch_size": 1})

    with pytest.raises(PartyError, match="other images than it was admitted with"):
        run(model_owner=owner, data_owner=two_images)


@pytest.mark.parametrize("name", ["shape", "data type", "visibility", "storage type", "bytes"])
def test_descriptions_of_shares_are_not_believed(name):
    """A share that is not just what the program takes never reaches SPU."""
    false = {
        "shape": lambda io: io.make_shares(np.zeros((3, 2), np.float32), SECRET)[0],
        "data type": lambda io: io.make_shares(np.zeros((2, 3), np.int32), SECRET)[0],
        "visibility": lambda io: io.make_shares(np.zeros((2, 3), np.float32), PUBLIC)[0],
        "storage type": lambda io: spu.Io(
            2, runtime_config(replace(PROFILE, ring_bits=128))
        ).make_shares(np.zeros((2, 3), np.float32), SECRET)[0],
        "bytes": lambda io: _longer(io.make_shares(np.zeros((2, 3), np.float32), SECRET)[0]),
    }[name]

    def give(channel):
        share = false(spu.Io(2, runtime_config(PROFILE)))
        channel.send(Role.DATA_OWNER, pack([share]))

    def take(channel):
        Sharing(channel, PROFILE).take(Role.MODEL_OWNER, {"x": (2, 3)})

    with pytest.raises(PartyError, match=rf"a share of 'x' .*(another {name}|bytes)"):
        run(model_owner=give, data_owner=take)


@pytest.mark.parametrize("bits", [64, 128])
def test_weights_are_shared_by_a_seed(bits):
    """The model owner sends a seed alone, and both shares make up the weights."""
    profile = replace(PROFILE, ring_bits=bits)
    rng = np.random.default_rng(0)
    shapes = {"kernel": (5, 3), "scale": (), "bias": (7,)}
    arrays = {
        name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in shapes.items()
    }

    def take_part(channel):
        sharing, counted = Sharing(channel, profile), 0
        if channel.role is Role.MODEL_OWNER:
            shares = sharing.give_weights(arrays)
        else:
            shares, counted = sharing.take_weights(Role.MODEL_OWNER, shapes)
        opened = {
            name: sharing.reveal_to(Role.DATA_OWNER, share, shapes[name])[0]
            for name, share in shares.items()
        }
        return opened, counted, [pack([share]) for share in shares.values()]

    seen = {turn: run_in_threads(profile, take_part) for turn in range(2)}
    opened, counted, theirs = seen[0][Role.DATA_OWNER]
    assert counted == SEED_BYTES
    for name, array in arrays.items():
        np.testing.assert_allclose(opened[name], array, atol=2.0**-profile.fraction_bits)
    assert theirs != seen[1][Role.DATA_OWNER][2]  # every session has its own seed


@pytest.mark.parametrize("length", [0, SEED_BYTES - 1, SEED_BYTES + 1])
def test_a_seed_of_another_length_is_refused(length):
    def give(channel):
        channel.send(Role.DATA_OWNER, bytes(length))

    def take(channel):
        Sharing(channel, PROFILE).take_weights(Role.MODEL_OWNER, {"x": (2, 3)})

    with pytest.raises(PartyError, match="malformed shares"):
        run(model_owner=give, data_owner=take)


def _longer(share):
    share.share_chunks = [chunk + b"\0" for chunk in share.share_chunks]
    return share


@pytest.mark.parametrize("message", [b"\x01", b"\x01\0\0\0" + b"\xff" * 8, b"\0\0\0\0"])
def test_garbage_for_shares(message):
    with pytest.raises(PartyError, match="malformed shares"):
        unpack(message, Role.MODEL_OWNER)

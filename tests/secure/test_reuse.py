"""Masks of kernels that are reused: two attackers win against SPU's naive way, and lose to ours.

Both attackers follow the protocol, and then put together what they saw: every
opened value is a secret less its mask, and blocks of the random streams that
hide two arrays tell of one what is known of the other.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest
import spu
from spu import libspu
from spu.experimental import make_cached_var

import mpcvit
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.protocols import Truncation
from mpcvit.artifacts.record import Reveal
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.generator import blocks_of, draw
from mpcvit.dealer.keys import load_private_key
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.party.gateway import Gateway, Recorder, ScriptFollower, zeros
from mpcvit.dealer.script import Kind
from mpcvit.lowering.lower import lower
from mpcvit.model.checkpoint import flatten_parameters
from mpcvit.secure.card import LEAST_RUNS
from mpcvit.secure.dealing import party as dealing
from mpcvit.secure.dealing import rehearsal
from mpcvit.secure.parties.roles import Role
from mpcvit.secure.spu.compile import compile_function
from mpcvit.secure.spu.engine import DealerSettings, Engine, run_in_threads
from tests.models import tiny
from tests.tolerances import FXP26, assert_close
from tests.unit.dealer.conftest import GOLDEN

DEALER = load_profile("semi2k-dealer")
WIDE = replace(DEALER, ring_bits=128, fraction_bits=26, truncation=Truncation.LOCAL)
WIDTH, RING = 16, 2**128
M, K, N = 3, 12, 5  # an image's rows, and a layer's kernel
IMAGES = 2


@dataclass(frozen=True, kw_only=True)
class Opened:
    """An array less its mask, as both parties see it, and who knows the array."""

    owner: Role
    name: str
    begins: int  # of the mask, in blocks
    values: list[int]


def numbers(content):
    return [int.from_bytes(content[at : at + WIDTH], "little") for at in range(0, len(content), 16)]


def encoded(array):
    return [round(float(value) * 2**WIDE.fraction_bits) % RING for value in array.reshape(-1)]


def multiply(weights, images, answer, *, first_use):
    """Both parties multiply images with a kernel whose mask is reused; gives the products."""
    product = compile_function(lambda w, x: x @ make_cached_var(w), weights, images[0])
    pem = load_private_key(GOLDEN / "key").public.pem

    def take_part(channel):
        channel.counts_costs = False
        with Gateway(answer(channel.role)) as gateway:
            engine = Engine(channel, WIDE, DealerSettings(gateway=gateway, public_pem=pem))
            found = []

            def share(owner, name, array):
                if channel.role is owner:
                    shares, _ = engine.sharing.give({name: array})
                else:
                    shares, _ = engine.sharing.take(owner, {name: array.shape})
                engine.runtime.set_var(name, shares[name])

            share(Role.MODEL_OWNER, "kernel", weights)
            if first_use:
                engine.use_first("kernel", weights.shape)
            for image in images:
                share(Role.DATA_OWNER, "image", image)
                executable = libspu.Executable(
                    name="product",
                    input_names=["kernel", "image"],
                    output_names=["product"],
                    code=product,
                )
                engine.run(executable, "product")
                own = engine.runtime.get_var("product")
                found.append(engine.sharing.reveal_to(Role.DATA_OWNER, own, (M, N))[0])
            return found

    return run_in_threads(WIDE, take_part)[Role.DATA_OWNER]


def seen(weights, images, *, first_use):
    """Everything that is opened while a dealer answers whatever it is asked."""
    key, calls = load_private_key(GOLDEN / "key"), []

    def answer(role):
        def adjusting(call):
            calls.append(call)
            return [adjust(call.step, tuple(map(key.decrypt, call.seeds)), call.counts)]

        return adjusting if role is Role.MODEL_OWNER else lambda call: zeros(call.step)

    products = multiply(weights, images, answer, first_use=first_use)
    for product, image in zip(products, images, strict=True):
        # right results show that the masks are those which were asked for
        assert_close(product, image @ weights, FXP26)
    found, rest = [], list(enumerate(images, 1))

    def opened(call, operand, owner, name, array):
        begins, length = call.counts[operand], call.step.operand_bytes[operand]
        masks = [numbers(draw(key.decrypt(seed), begins, length)) for seed in call.seeds]
        values = [
            (secret - sum(mask)) % RING
            for secret, *mask in zip(encoded(array), *masks, strict=True)
        ]
        found.append(Opened(owner=owner, name=name, begins=begins, values=values))

    for call in calls:
        if call.step.kind is Kind.MUL:
            for operand in (0, 1):
                opened(call, operand, Role.MODEL_OWNER, "kernel", weights)
        else:
            number, image = rest.pop(0)
            opened(call, 0, Role.DATA_OWNER, f"image {number}", image)
            opened(call, 1, Role.MODEL_OWNER, "kernel", weights)
    return found


def learn(attacker, found, secrets):
    """What an attacker works out of what was opened and its own arrays: by name and place."""
    masks, learnt = {}, {}
    while True:
        known = len(masks) + len(learnt)
        for own in found:
            for place, value in enumerate(own.values):
                block = own.begins + place
                if own.owner is attacker:
                    masks[block] = (secrets[own.name][place] - value) % RING
                elif block in masks:
                    learnt[own.name, place] = (value + masks[block]) % RING
                elif (own.name, place) in learnt:
                    masks[block] = (learnt[own.name, place] - value) % RING
        if len(masks) + len(learnt) == known:
            return learnt


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((K, N)).astype(np.float32)
    images = [rng.standard_normal((M, K)).astype(np.float32) for _ in range(IMAGES)]
    return weights, images


def attack(arrays, *, first_use):
    """What the data owner learns of the kernel, and the model owner of images."""
    weights, images = arrays
    found = seen(weights, images, first_use=first_use)
    secrets = {"kernel": encoded(weights)}
    secrets |= {f"image {number}": encoded(image) for number, image in enumerate(images, 1)}
    learnt = {role: learn(role, found, secrets) for role in (Role.DATA_OWNER, Role.MODEL_OWNER)}
    for own in learnt.values():
        for (name, place), value in own.items():
            assert value == secrets[name][place]  # not guessed: exact
    return {role: Counter(name for name, _ in own) for role, own in learnt.items()}


def test_the_naive_way_gives_weights_and_images_away(arrays):
    learnt = attack(arrays, first_use=False)
    # more than half of the kernel, and the second image whole
    assert learnt[Role.DATA_OWNER] == {"kernel": 36}
    assert learnt[Role.MODEL_OWNER] == {"image 2": M * K}
    assert K * N < 2 * 36


def test_ours_gives_nothing_away(arrays):
    learnt = attack(arrays, first_use=True)
    assert learnt == {Role.DATA_OWNER: {}, Role.MODEL_OWNER: {}}


def test_a_gateway_refuses_the_naive_way_at_its_first_call(arrays):
    """Before SPU opens anything; nobody gets a product."""
    answered = []

    class Watched(Recorder):
        def __call__(self, call):
            buffers = super().__call__(call)
            answered.append(call)
            return buffers

    with pytest.raises(DealerError, match="neither fresh nor a kernel's"):
        multiply(*arrays, lambda role: Watched(), first_use=False)
    assert not answered


class Session:
    """A private run of a lowered network through a dealer, as both gateways saw it."""

    def __init__(self, program, count, profile=DEALER, batch_size=1):
        self.calls, self.touched = {}, Counter()
        session = self

        class Watched(ScriptFollower):
            def __call__(self, call):
                buffers = super().__call__(call)
                if self._job is not None:
                    session.calls.setdefault(self._supply is not None, []).append(call)
                return buffers

        pixels = tiny()[1]
        self.pixels = np.concatenate([pixels, 255 - pixels])[:count]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dealing, "ScriptFollower", Watched)
            for name in ("set_var", "del_var"):
                patch.setattr(spu.Runtime, name, self._count(name))
            self.result = mpcvit.run(
                program,
                self.pixels,
                profile,
                batch_size=batch_size,
                reveal="logits",
                simulate=True,
            )
        self.record = self.result.record

    def _count(self, name):
        original, touched = getattr(spu.Runtime, name), self.touched

        def call(runtime, variable, *rest):
            touched[name, variable] += 1
            return original(runtime, variable, *rest)

        return call

    def draws(self):
        """Of one gateway, as the other saw the same: operand, begin and end of every array."""
        mine, theirs = self.calls.values()
        assert mine == theirs
        for call in mine:
            operands = zip(call.counts, call.step.operand_bytes, strict=True)
            for operand, (begins, length) in enumerate(operands):
                yield call.step.kind, operand, begins, begins + blocks_of(length)


def lowered(ring_bits):
    checkpoint, pixels = tiny()
    program = lower(checkpoint, list(pixels), DEALER, error_budget=1.0)
    trust = replace(program.public.trust, guard=False)  # so that only the network is counted
    program = program.changed(trust=trust)
    assert program.engine.reuse_weight_masks
    if ring_bits == 128:
        return program
    narrow = replace(program.engine, ring_bits=64, fraction_bits=18, truncation=Truncation.FAITHFUL)
    return program.changed(engine=narrow)


@pytest.fixture(scope="module")
def program():
    return rehearsal.with_script(lowered(128), DEALER, reveal=Reveal.LOGITS)


@pytest.fixture(scope="module")
def long_session(program):
    return Session(program, LEAST_RUNS)


def kernels_of(program):
    return {
        name: array
        for name, array in flatten_parameters(program.parameters).items()
        if name.endswith(".kernel")
    }


def require_clean(session, program):
    """Every block is drawn for one array; what is drawn again is a kernel's, on the right."""
    kernels, first = len(kernels_of(program)), {}
    replays, expected = 0, None
    for kind, operand, begins, ends in session.draws():
        if begins in first:
            assert (kind, operand) == (Kind.DOT, 1)
            assert (first[begins][0], first[begins][1]) == (Kind.MUL, 0)
            assert ends == first[begins][2]
            replays += 1
            continue
        assert expected in (None, begins)  # fresh arrays follow each other
        first[begins], expected = (kind, operand, ends), ends
    assert replays == kernels * len(session.record.batches)


def test_every_block_is_drawn_for_one_array(program, long_session):
    require_clean(long_session, program)


@pytest.mark.long
def test_every_block_is_drawn_for_one_array_in_the_narrow_ring():
    """Where truncation draws masks of its own between products."""
    program = lowered(64)
    require_clean(Session(program, LEAST_RUNS), program)


def test_the_logits_are_the_programs(program, long_session):
    expected = program(program.preprocess(list(long_session.pixels)))
    assert_close(long_session.result.logits, expected, FXP26)


def test_a_mask_opens_one_value(program, long_session):
    """SPU knows a mask by where its kernel lies; so each is set once a party, and kept."""
    for name in kernels_of(program):
        assert long_session.touched["set_var", name] == 2
        assert long_session.touched["del_var", name] == 0


def test_what_it_costs_and_saves(program, long_session):
    """Pinned; below three runs of the network nothing is reused, as it would not pay."""
    kernels = kernels_of(program)
    size = sum(array.size for array in kernels.values())
    short = Session(program, LEAST_RUNS - 1)
    assert short.record.set_up.warm_up_bytes == 0
    set_up, costs = long_session.record.set_up, [own.total for own in long_session.record.batches]
    assert (set_up.warm_up_exchanges, set_up.warm_up_bytes) == (len(kernels), 2 * WIDTH * size)
    fresh = {own.total.sent_bytes for own in short.record.batches}
    assert {own.sent_bytes for own in costs} == {one - WIDTH * size for one in fresh}
    assert {own.exchanges for own in costs} == {own.total.exchanges for own in short.record.batches}
    assert (len(kernels), size) == (5, 1_410)
    assert (costs[0].exchanges, costs[0].sent_bytes) == (24, 25_722)


@pytest.mark.long
def test_parties_apart(program, long_session):
    """Each in a process, with a dealer in a third."""
    found = mpcvit.run(program, long_session.pixels, DEALER, reveal="logits")
    assert_close(found.logits, long_session.result.logits, FXP26)
    ours, theirs = found.record, long_session.record
    assert (ours.exchanges, ours.sent_bytes) == (theirs.exchanges, theirs.sent_bytes)
    assert ours.set_up.warm_up_bytes == theirs.set_up.warm_up_bytes > 0
    assert ours.offline.received_bytes == theirs.offline.received_bytes


@pytest.mark.long
def test_batches_of_several_sizes_share_one_set_up(program):
    session = Session(program, 5, batch_size=2)
    assert [own.images for own in session.record.batches] == [2, 2, 1]
    expected = program(program.preprocess(list(session.pixels)))
    assert_close(session.result.logits, expected, FXP26)
    require_clean(session, program)


def test_a_program_carries_its_scripts_for_few_images_and_for_many(program, monkeypatch):
    assert sorted(script.is_set_up for script in program.public.scripts.values()) == [
        False,
        False,
        True,
    ]

    def rehearse(*_):
        raise DealerError("this was rehearsed")

    monkeypatch.setattr(rehearsal, "_rehearse", rehearse)
    Session(program, LEAST_RUNS)

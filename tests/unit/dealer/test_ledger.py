"""The ledger: every block of a stream is drawn for one array, and kernels' masks again whole."""

import json
import zlib
from dataclasses import replace

import pytest

from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.framing import Call
from mpcvit.dealer.generator import draw
from mpcvit.dealer.ledger import Ledger
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.party.gateway import Recorder
from mpcvit.dealer.script import Kind, Script, Step
from tests.unit.dealer.jobs import make_job

M, N, K = 2, 3, 5
OPEN = Step(kind=Kind.MUL, width=16, shape=(K * N,), kernel=0)
REPLAY = Step(kind=Kind.DOT, width=16, shape=(M, N, K), kernel=0)
SET_UP, INFERENCE = Script((OPEN,)), Script((REPLAY, replace(REPLAY, kernel=None), REPLAY))


def asked(step, *counts):
    """What SPU says: it names no kernel."""
    return Call(step=replace(step, kernel=None), counts=counts, seeds=())


def test_a_kernels_mask_is_drawn_again_and_all_else_is_fresh():
    ledger = Ledger(100)
    assert ledger.enter(OPEN) == (100, 115, 130)
    assert ledger.enter(REPLAY) == (145, 100, 155)
    assert ledger.enter(replace(REPLAY, kernel=None)) == (161, 171, 186)
    assert ledger.enter(REPLAY) == (192, 100, 202)
    assert ledger.next == 208 == 100 + SET_UP.blocks + INFERENCE.blocks


def test_a_recorder_finds_the_kernel_of_every_product():
    recorder = Recorder()
    recorder.expect_kernel()
    recorder(asked(OPEN, 100, 115, 130))
    assert recorder.take() == SET_UP
    recorder(asked(REPLAY, 145, 100, 155))
    recorder(asked(REPLAY, 161, 171, 186))
    recorder(asked(REPLAY, 192, 100, 202))
    assert recorder.take() == INFERENCE


def recorded():
    recorder = Recorder()
    recorder.expect_kernel()
    recorder(asked(OPEN, 0, 15, 30))
    return recorder


def test_the_naive_way_is_refused_at_its_first_call():
    """SPU 0.9.5 draws the mask of a kernel that it multiplies first, and what hides the product,
    from one range.
    """
    with pytest.raises(DealerError, match="neither fresh nor a kernel's"):
        Recorder()(asked(REPLAY, 0, 10, 10))


@pytest.mark.parametrize(
    ("step", "counts"),
    [
        (REPLAY, (45, 0, 0)),  # the product hidden by the kernel's own mask
        (REPLAY, (45, 0, 15)),  # or by another that was used
        (REPLAY, (0, 45, 60)),  # on the left
        (REPLAY, (0, 0, 45)),
        (REPLAY, (45, 1, 55)),  # a part of it
        (REPLAY, (45, 15, 55)),  # the mask of the other factor, which is no kernel's
        (REPLAY, (46, 0, 56)),  # skips a block
        (REPLAY, (44, 0, 54)),
        (replace(REPLAY, width=8), (45, 0, 50)),  # of another width
        (replace(REPLAY, shape=(M, N - 1, K)), (45, 0, 55)),  # of another length
        (OPEN, (45, 0, 60)),  # in an elementwise product
        (OPEN, (0, 45, 60)),
        (Step(kind=Kind.SQUARE, width=16, shape=(K * N,)), (0, 45)),
        (Step(kind=Kind.RANDOM_BIT, width=16, shape=(K * N,)), (0,)),
    ],
)
def test_ranges_that_are_neither_fresh_nor_a_kernels(step, counts):
    with pytest.raises(DealerError, match=r"neither fresh nor a kernel's|for another size"):
        recorded()(asked(step, *counts))


def test_the_first_use_is_a_product_of_arrays():
    recorder = Recorder()
    recorder.expect_kernel()
    with pytest.raises(DealerError, match="a Dot cannot be the first use"):
        recorder(asked(REPLAY, 0, 10, 25))


def rows(*changed):
    return [["Mul", 16, [15], 0, *changed]]


@pytest.mark.parametrize(
    "written", [[True], [0.0], ["0"], [None], [-1], [10_000], [0, 0], [[0]], [False]]
)
def test_kernels_that_a_script_cannot_name(written):
    text = json.dumps(rows(*written), separators=(",", ":")).encode()
    with pytest.raises(DealerError):
        Script.from_bytes(zlib.compress(text))


def test_a_script_names_its_kernels_and_its_digest_holds_them():
    assert Script.from_bytes(INFERENCE.to_bytes()) == INFERENCE
    others = [
        Script((replace(REPLAY, kernel=kernel), *INFERENCE.steps[1:])) for kernel in (None, 1)
    ]
    assert len({script.digest for script in (INFERENCE, *others)}) == 3
    for kind in (Kind.SQUARE, Kind.AND, Kind.RANDOM_BIT, Kind.MUL_PRIVATE):
        with pytest.raises(DealerError, match="no kernel whose mask is reused"):
            Step(kind=kind, width=16, shape=(15,), kernel=0)


@pytest.mark.parametrize(
    ("plan", "match"),
    [
        (((INFERENCE, 2),), "was not used before"),
        (((INFERENCE, 1), (SET_UP, 1)), "one set-up, before"),
        (((SET_UP, 2), (INFERENCE, 1)), "one set-up, before"),
        (((SET_UP, 1), (SET_UP, 1)), "one set-up, before"),
        (((Script((OPEN, OPEN)), 1),), "out of turn, or used again"),
        (((Script((replace(OPEN, kernel=1),)), 1),), "out of turn"),
        (((Script((replace(OPEN, shape=(14,)),)), 1), (INFERENCE, 1)), "for another size"),
        (((Script((replace(OPEN, width=8),)), 1), (INFERENCE, 1)), "for another size"),
    ],
)
def test_jobs_that_cannot_be(key, plan, match):
    job = make_job(key)
    with pytest.raises(DealerError, match=match):
        replace(job, plan=plan)


def whole(seeds, counts, step):
    """What both parties' arrays add up to."""
    return [
        [
            sum(int.from_bytes(draw(seed, count, length)[at : at + 16], "little") for seed in seeds)
            for at in range(0, length, 16)
        ]
        for count, length in zip(counts, step.operand_bytes, strict=True)
    ]


def test_the_dealer_fits_every_product_to_the_one_mask(dealer, key):
    """Over the wire, from the set-up to the last product, from any step on."""
    seeds = (b"s" * 16, b"c" * 16)
    job = replace(make_job(key, seeds), plan=((SET_UP, 1), (INFERENCE, 2)))
    for party in ("client", "server"):
        dealer.client(party).authorise(job)
    ledger, server = Ledger(job.start), dealer.client("server")
    for index in range(job.inferences):
        script, start = job.inference(index)
        assert ledger.next == start == job.ledger(index).next
        content = bytearray(script.answer_bytes)
        server.fetch(job, index, memoryview(content), lambda done: None)
        last = server._ask("GET", f"/jobs/{job.digest}/{index}/{len(script.steps) - 1}")
        assert content.endswith(last)
        for step in script.steps:
            counts = ledger.enter(step)
            size = sum(step.answer_bytes)
            answer, content = bytes(content[:size]), content[size:]
            assert answer == adjust(step, seeds, counts)
            if step.kind is Kind.DOT:
                assert (counts[1] == job.start) == (step.kernel == 0)
                a, b, c = whole(seeds, counts, step)
                product = [
                    sum(a[row * K + k] * b[k * N + column] for k in range(K))
                    for row in range(M)
                    for column in range(N)
                ]
                for at, (one, own) in enumerate(zip(product, c, strict=True)):
                    correction = int.from_bytes(answer[16 * at : 16 * at + 16], "little")
                    assert (own + correction - one) % 2**128 == 0
    assert json.loads(server.metrics())["inferences"] == 4  # two, each with the last step again

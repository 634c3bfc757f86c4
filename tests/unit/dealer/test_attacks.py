"""An adjusting party that asks for more than was agreed on.

Whoever gets a correction for a range that hides a secret, but of another
operation, learns the masks: random bits less the masks, for instance, are the
masks but for their lowest bit.
"""

import base64
import json

import pytest

from mpcvit.dealer.errors import DealerError, LaterError
from mpcvit.dealer.framing import read_call
from mpcvit.dealer.generator import draw
from mpcvit.dealer.operations import adjust
from mpcvit.dealer.script import Kind, Script, Step
from mpcvit.hosts.peer import Peer
from tests.unit.dealer.jobs import (
    SCRIPT,
    authorise,
    expected,
    fetch,
    make_job,
    new_seeds,
    outline,
    seal,
)

N = 5  # elements of the first product in SCRIPT
BITS = Script((Step(kind=Kind.RANDOM_BIT, width=8, shape=(N,)),))
PATH = "/spu.mpc.semi2k.beaver.ttp_server.BeaverService/AdjustRandBit"


def words(content):
    return [int.from_bytes(content[i : i + 8], "little") for i in range(0, len(content), 8)]


def crafted(sealed, count):
    """A request for random bits, over a range that masks something else."""
    seeds = [base64.b64encode(seed).decode() for seed in sealed]
    operand = {"prg_count": count, "buffer_len": 8 * N, "encrypted_seeds": seeds}
    return json.dumps({"prg_inputs": [operand], "field_size": 8}).encode()


def unmask(answer, own_seed, count):
    """The other's masks, but for their lowest bit, from a correction and the own masks."""
    own = words(draw(own_seed, count, 8 * N))
    return [(-x - y) % 2**64 for x, y in zip(words(answer), own, strict=True)]


def reveals(answer, seeds, count=10):
    masks = words(draw(seeds[1], count, 8 * N))
    found = unmask(answer, seeds[0], count)
    return all((mask - guess) % 2**64 <= 1 for mask, guess in zip(masks, found, strict=True))


def test_an_unguarded_handler_gives_masks_away(key):
    """As SPU's own server would: it decrypts whatever it is sent and computes."""

    def unguarded(path, body):
        call = read_call(path, body)
        return adjust(call.step, tuple(map(key.decrypt, call.seeds)), call.counts)

    seeds = new_seeds()
    request = crafted([seal(key, seed) for seed in seeds], 10)
    assert reveals(unguarded(PATH, request), seeds)


def test_ours_takes_no_such_request(dealer, key):
    seeds = new_seeds()
    request = crafted([seal(key, seed) for seed in seeds], 10)
    with pytest.raises(DealerError, match="nothing of this kind"):
        dealer.client("server")._ask("POST", PATH, request)


@pytest.fixture
def served(dealer, key):
    """A job that both authorised and that was served."""
    seeds = new_seeds()
    job = make_job(key, seeds)
    authorise(dealer, job)
    assert fetch(dealer.client("server"), job) == expected(seeds)
    return seeds, job


def ask_once(dealer, party, path):
    return dealer.client(party, patience_s=10.0)._ask("GET", path)


def refused(dealer, job, match="a seed was used in another job"):
    """Even where someone authorises it for the other party."""
    with pytest.raises(DealerError, match=match):
        authorise(dealer, job)
    with pytest.raises(LaterError, match="has not authorised"):
        ask_once(dealer, "server", f"/jobs/{job.digest}/0/0")


def test_another_operation_over_the_same_range(dealer, key, served):
    _, job = served
    refused(dealer, make_job(key, sealed=job.seeds, script=BITS))


@pytest.mark.parametrize("start", [9, 11, 13, 10 + SCRIPT.blocks + 1])
def test_overlapping_and_skipped_ranges(dealer, key, served, start):
    _, job = served
    refused(dealer, make_job(key, sealed=job.seeds, start=start))


def test_a_replay_in_another_job(dealer, key, served):
    """The same script over the same range, but with another seed of the attacker's."""
    seeds, job = served
    refused(dealer, make_job(key, sealed=(seal(key, new_seeds()[0]), job.seeds[1])))
    refused(dealer, make_job(key, sealed=job.seeds, times=3))
    refused(dealer, make_job(key, seeds=seeds))  # encrypted anew


def test_foreign_seeds(dealer, key, served):
    """Another's seed in the attacker's place, and in both."""
    _, job = served
    mine = seal(key, new_seeds()[0])
    refused(dealer, make_job(key, sealed=(job.seeds[1], mine)))
    refused(dealer, make_job(key, sealed=job.seeds[::-1]))
    one = new_seeds()[0]
    twice = make_job(key, seeds=(one, one))
    refused(dealer, twice, match="seeds are the same")
    with pytest.raises(DealerError, match="two different seeds"):
        make_job(key, sealed=(mine, mine))


def test_a_job_that_one_party_never_authorised(dealer, key):
    seeds = new_seeds()
    for party, other in (("server", "client"), ("client", "server")):
        job = make_job(key, seeds)
        for _ in range(2):
            dealer.client(party).authorise(job)
        with pytest.raises(LaterError, match=f"the {other} has not authorised the job"):
            ask_once(dealer, "server", f"/jobs/{job.digest}/0/0")


def test_seeds_are_bound_before_anything_is_asked_for(dealer, key):
    """A party that waits for the job to be open can use its masks; no other job gets them."""
    job = make_job(key)
    dealer.client("client").authorise(job)
    with pytest.raises(LaterError, match="the server has not authorised the job"):
        ask_once(dealer, "client", f"/jobs/{job.digest}")
    dealer.client("server").authorise(job)
    dealer.client("client").wait_until_open(job)
    refused(dealer, make_job(key, sealed=job.seeds, script=BITS))
    with pytest.raises(DealerError, match="no such job"):
        dealer.client("client").wait_until_open(make_job(key))


def test_a_job_that_differs_from_what_the_other_authorised(dealer, key):
    seeds = new_seeds()
    sealed = tuple(seal(key, seed) for seed in seeds)
    dealer.client("client").authorise(make_job(key, sealed=sealed))
    mine = make_job(key, sealed=sealed, script=BITS)
    dealer.client("server").authorise(mine)
    with pytest.raises(LaterError, match="the client has not authorised"):
        ask_once(dealer, "server", f"/jobs/{mine.digest}/0/0")


def test_inferences_out_of_turn(dealer, key):
    job = make_job(key, times=3)
    authorise(dealer, job)
    server = dealer.client("server")
    with pytest.raises(DealerError, match="inference 1 is out of turn: 0 comes next"):
        fetch(server, job, 1)
    fetch(server, job, 0)
    fetch(server, job, 1)
    with pytest.raises(DealerError, match="has 3 inferences, and no number 3"):
        server._ask("GET", f"/jobs/{job.digest}/3/0")


def test_material_is_for_the_adjusting_party_alone(dealer, key, served):
    _, job = served
    with pytest.raises(DealerError, match="for the server alone"):
        fetch(dealer.client("client"), job)


def test_identical_retries_are_answered_identically(dealer, key, served):
    seeds, job = served
    again = [fetch(dealer.client("server"), job) for _ in range(2)]
    assert set(again) == {expected(seeds)}
    authorise(dealer, job)
    assert fetch(dealer.client("server"), job) == expected(seeds)
    second = expected(seeds, start=10 + SCRIPT.blocks)
    assert fetch(dealer.client("server"), job, 1) == second


def test_seeds_stay_used_after_a_restart_and_after_the_job_is_forgotten(dealer, key, served):
    _, job = served
    with dealer.table._changing() as table:
        table.execute("DELETE FROM jobs")
    dealer.stop()
    dealer.start()
    refused(dealer, make_job(key, sealed=job.seeds, script=BITS))


def test_the_table_alone_refuses_what_comes_too_early(dealer, key):
    job = make_job(key)
    server = Peer(role="server", name="server", fingerprint="5" * 64)
    with pytest.raises(DealerError, match="no such job"):
        dealer.table.begin(job.digest, 0, server)
    dealer.table.authorise(outline(job), server)
    with pytest.raises(LaterError):
        dealer.table.begin(job.digest, 0, server)

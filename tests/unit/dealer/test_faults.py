"""A dealer that is down, dies, stalls, answers short or comes back; and a party that notices."""

import mmap
import threading
import time

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.dealer.errors import DealerError
from mpcvit.dealer.keys import PUBLIC_FILE
from mpcvit.dealer.party import supply as supplying
from mpcvit.dealer.party.supply import Supply
from mpcvit.dealer.script import Kind, Script, Step
from mpcvit.hosts.certificates import make_certificates
from mpcvit.secure.dealing.endpoint import DealerEndpoint
from tests.unit.dealer.conftest import ALL, GOLDEN
from tests.unit.dealer.jobs import authorise, expected, fetch, make_job, new_seeds
from tests.unit.dealer.saboteur import Saboteur

LONG = Script(tuple(Step(kind=Kind.MUL, width=8, shape=(20_000,)) for _ in range(12)))


@pytest.fixture
def job(dealer, key):
    seeds = new_seeds()
    found = make_job(key, seeds, script=LONG)
    authorise(dealer, found)
    return seeds, found


def test_a_dealer_that_is_down(dealer, key):
    client = dealer.client("server", patience_s=60)
    dealer.stop()
    started = time.monotonic()
    with pytest.raises(DealerError, match="nobody listens at the dealer's address"):
        client.check()
    assert time.monotonic() - started < 30, "it is not tried for a minute"
    client = dealer.client("server", patience_s=0.5)
    with pytest.raises(DealerError, match=r"is not there: connection refused \(tried for 0.5 s\)"):
        client.authorise(make_job(key))
    dealer.start()
    dealer.client("server").check()


def test_a_dealer_that_comes_up_late(dealer):
    client = dealer.client("server", patience_s=10)
    dealer.stop()
    threading.Timer(0.4, dealer.start).start()
    client.metrics()


def test_a_cut_in_the_middle_is_mended(dealer, job):
    """What was whole is kept, and the rest is asked for again."""
    seeds, found = job
    saboteur = Saboteur(dealer.address, [400_000, 300_000, 10])
    client = dealer.client("server", dialled=saboteur.address, patience_s=5)
    assert fetch(client, found) == expected(seeds, LONG)
    saboteur.close()
    sent = [line.sent_bytes for line in dealer.log if line.what == "inference 0"]
    assert len(sent) >= 2


def test_a_dealer_that_restarts_in_the_middle(dealer, job):
    seeds, found = job
    saboteur = Saboteur(dealer.address, [400_000])
    client = dealer.client("server", dialled=saboteur.address, patience_s=5)
    content = bytearray(LONG.answer_bytes)
    restarted = []

    def done(count):
        if count > 200_000 and not restarted:
            restarted.append(True)
            dealer.stop()
            dealer.start()

    client.fetch(found, 0, memoryview(content), done)
    saboteur.close()
    assert restarted
    assert bytes(content) == expected(seeds, LONG)


def test_a_dealer_that_always_answers_short(dealer, job):
    _, found = job
    saboteur = Saboteur(dealer.address, [5000] * 1000)
    client = dealer.client("server", dialled=saboteur.address, patience_s=1.0)
    with pytest.raises(
        DealerError, match=r"dealer at .* breaks off: answered short \(tried for 1 s"
    ):
        fetch(client, found)
    saboteur.close()
    assert len(saboteur.allowances) > 990, "a few attempts"


def test_a_dealer_that_stalls(dealer, job):
    _, found = job
    saboteur = Saboteur(dealer.address, [5000] * 1000, stalls=True)
    client = dealer.client("server", dialled=saboteur.address, patience_s=1.0)
    with pytest.raises(DealerError, match="stalls"):
        fetch(client, found)
    saboteur.close()
    assert len(saboteur.allowances) == 999, "not once more for what came before"


def test_a_dealer_behind_a_wall(dealer, monkeypatch):
    """A firewall that drops what it refuses is not told from a host that is off."""

    def drop(*_, **__):
        raise TimeoutError

    client = dealer.client("server", patience_s=0.5)
    monkeypatch.setattr("mpcvit.dealer.party.client.socket.create_connection", drop)
    with pytest.raises(DealerError, match=r"does not answer \(tried for 0\.5 s\)"):
        client.check()


def test_a_party_that_stalls_does_not_hold_the_dealer(dealer, job):
    """Its place is free again after a while, and others are served meanwhile."""
    _, found = job
    client = dealer.client("server")
    with client._answer("GET", f"/jobs/{found.digest}/0/0") as answer:
        answer.read(10)
        client.check()


def test_material_of_another_length(dealer, key, job, monkeypatch):
    """A dealer that offers more or less than the script says gets nowhere."""
    _, found = job
    content = bytearray(LONG.answer_bytes - 8)
    with pytest.raises(DealerError, match="material of no use"):
        dealer.client("server").fetch(found, 0, memoryview(content), lambda done: None)


def test_a_clock_that_is_wrong(running, key, certificates, tmp_path):
    """Certificates that are not valid yet here are refused, and the sentence says so."""
    from datetime import datetime, timedelta, timezone

    future = datetime.now(timezone.utc) + timedelta(days=2)
    make_certificates(tmp_path / "future", names=ALL, now=future)
    dealer = running()
    dealer.stop()
    dealer.certificates = tmp_path / "future"
    dealer.start()
    with pytest.raises(DealerError, match="certificate is not yet valid"):
        dealer.client("server").check()


def test_supply_fetches_ahead_and_forgets_what_was_used(dealer, job):
    seeds, found = job
    supply = Supply(dealer.client("server"), found)
    with pytest.raises(DealerError, match="is not there"):
        supply.material(0)
    offline = supply.wait(0)
    assert offline.received_bytes == LONG.answer_bytes
    assert bytes(supply.material(0)) == expected(seeds, LONG)
    supply.prefetch(1)
    supply.prefetch(2)  # there are only two
    supply.release(0)
    with pytest.raises(DealerError, match="is not there"):
        supply.material(0)
    supply.wait(1)
    assert bytes(supply.material(1)) == expected(seeds, LONG, start=10 + LONG.blocks)


def test_memory_of_used_material_is_given_back_at_once(dealer, job, monkeypatch):
    monkeypatch.setattr(supplying, "_FORGOTTEN_BYTES", mmap.PAGESIZE)
    seeds, found = job
    supply = Supply(dealer.client("server"), found)
    supply.wait(0)
    whole, page = expected(seeds, LONG), mmap.PAGESIZE
    supply.forget(0, page - 1)
    assert bytes(supply.material(0)) == whole
    supply.forget(0, 3 * page + 7)
    assert bytes(supply.material(0)) == bytes(3 * page) + whole[3 * page :]


def test_what_failed_while_nobody_waited_is_tried_again(dealer, job, monkeypatch):
    seeds, found = job
    supply = Supply(dealer.client("server", patience_s=1.0), found)
    dealer.stop()
    supply.prefetch(0)
    with pytest.raises(DealerError):
        supply._loads[0].wait(lambda done, total: None)
    dealer.start()
    supply.wait(0)
    assert bytes(supply.material(0)) == expected(seeds, LONG)
    dealer.stop()
    supply.prefetch(1)
    begun = supply._loads[1]
    monkeypatch.setattr(supply, "prefetch", lambda inference: None)
    with pytest.raises(DealerError, match="is not there"):
        supply.wait(1)  # which waits for what was begun, and not once more
    assert begun.has_failed
    monkeypatch.undo()
    dealer.start()
    supply.wait(1)


def test_a_dealer_that_is_gone_is_noticed_within_ten_seconds(certificates):
    """Under every profile, however patient it is with other parties."""
    public, tls = GOLDEN / "key" / PUBLIC_FILE, certificates / "server"
    endpoint = DealerEndpoint(address="127.0.0.1:9100", key=str(public), tls=str(tls))
    profile = load_profile("semi2k-dealer")
    assert profile.limits.connect_s > 10
    assert endpoint.client_of(profile).patience_s < 9

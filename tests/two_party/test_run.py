"""Real processes: the same results and counts as in the simulator, and the modelled seconds."""

import os
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import mpcvit
from mpcvit.artifacts.profile import load_profile
from mpcvit.classifier import Classifier
from mpcvit.cores import THREADS_VARIABLE, threads_of_party
from tests.records import counts
from tests.tolerances import FXP18, assert_close
from tests.two_party.conftest import shared_count
from tests.two_party.processes import children, ports_of, sockets_of

# not the default, which a party would take by itself
PROFILE = replace(load_profile("semi2k"), fraction_bits=20)


@dataclass
class Observed:
    """A run of two processes, and what was seen of them meanwhile."""

    result: Any = None
    events: list[Any] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)  # that each party may start
    listening: list[Any] = field(default_factory=list)  # ports and sockets of each party


@pytest.fixture(scope="module")
def observed(checkpoint, pixels, tmp_path_factory):
    found, folder = Observed(), tmp_path_factory.mktemp("observed")

    class Spy(subprocess.Popen):
        def __init__(self, *arguments, **options):
            found.threads.append(options["env"][THREADS_VARIABLE])
            super().__init__(*arguments, **options)

    def progress(*event):
        found.events.append(event)
        if event[0] == "running" and not found.listening:
            parties = children("mpcvit.secure.parties.party").values()
            found.listening += [(ports_of(party), sockets_of(party)) for party in parties]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        patch.setattr(subprocess, "Popen", Spy)
        patch.delenv(THREADS_VARIABLE, raising=False)
        found.result = mpcvit.run(
            checkpoint, pixels, PROFILE, reveal="logits", insecure=True, progress=progress
        )
    assert children("mpcvit.secure") == {}
    assert not list(folder.iterdir())
    return found


def test_two_processes_agree_with_plaintext_and_simulator(observed, checkpoint, pixels):
    result, plain = observed.result, Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels))), FXP18)
    assert [event for event in observed.events if event[0] == "running"][-1] == ("running", 12, 12)
    simulated = mpcvit.run(checkpoint, pixels, PROFILE, reveal="logits", simulate=True)
    assert result.record.profile == simulated.record.profile
    assert counts(result.record) == counts(simulated.record)
    assert result.record.program == simulated.record.program
    assert set(result.record.peak_bytes) == {"model owner", "data owner"}
    assert 0 < result.record.set_up.received_bytes < shared_count(checkpoint)  # seeds


def test_the_default_is_secure_and_warms_up_apart(checkpoint, pixels, nobody_left):
    result = mpcvit.run(checkpoint, pixels[:1], reveal="logits")
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels[:1]))), FXP18)
    assert result.record.profile.protocol.name == "CHEETAH"
    assert result.record.set_up.warm_up_s > 0
    assert result.record.notes == ()


def test_parties_share_the_cores(observed):
    """Threads of a product spin if they have no core."""
    assert observed.threads == [str(threads_of_party(2))] * 2


@pytest.mark.long
def test_a_limit_of_threads_that_the_user_set_stays(checkpoint, pixels, nobody_left, monkeypatch):
    monkeypatch.setenv(THREADS_VARIABLE, "3")
    limits = []

    class Spy(subprocess.Popen):
        def __init__(self, *arguments, **options):
            limits.append(options["env"][THREADS_VARIABLE])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", Spy)
    mpcvit.run(checkpoint, pixels[:1], "semi2k", insecure=True)
    assert limits == ["3"] * 2


def test_three_processes(checkpoint, pixels, nobody_left):
    result = mpcvit.run(checkpoint, pixels[:1], "aby3", reveal="logits")
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels[:1]))), FXP18)


@pytest.mark.long  # a timing, which a busy machine spoils
def test_modelled_seconds_are_those_of_the_emulated_network(checkpoint, pixels, nobody_left):
    """Within 15 %; the best of five, as the machine may be busy with other things."""
    profile = load_profile("semi2k-wan")
    ratios = []
    for _ in range(5):
        record = mpcvit.run(checkpoint, pixels[:1], profile, insecure=True).record
        ratios.append(record.measured_s / record.modelled_s(profile.network))
        if abs(ratios[-1] - 1) < 0.15:
            return
    raise AssertionError(f"measured over modelled: {ratios}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees a protected process's sockets")
def test_no_party_opens_a_port(observed):
    """SPU's own link is reached through a folder that belongs to this user alone."""
    assert observed.listening == [([], ["own.sock"])] * 2

"""Real processes: the same results and counts as in the simulator, and the modelled seconds."""

import os
import subprocess
from dataclasses import replace

import numpy as np
import pytest

import mpcvit
from mpcvit.artifacts.profile import load_profile
from mpcvit.classifier import Classifier
from mpcvit.cores import THREADS_VARIABLE, threads_of_party
from tests.marks import mostly_long
from tests.records import counts
from tests.tolerances import FXP18, assert_close
from tests.two_party.conftest import shared_count
from tests.two_party.processes import children, ports_of, sockets_of


def test_two_processes_agree_with_plaintext_and_simulator(checkpoint, pixels, nobody_left):
    progress = []
    result = mpcvit.run(
        checkpoint,
        pixels,
        "semi2k",
        reveal="logits",
        insecure=True,
        progress=lambda *event: progress.append(event),
    )
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels))), FXP18)
    assert [event for event in progress if event[0] == "running"][-1] == ("running", 12, 12)
    simulated = mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", simulate=True)
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


@pytest.mark.parametrize("given", mostly_long([None, "3"], None))
def test_parties_share_the_cores(checkpoint, pixels, nobody_left, monkeypatch, given):
    """Threads of a product spin if they have no core; a limit that the user set stays."""
    if given is None:
        monkeypatch.delenv(THREADS_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(THREADS_VARIABLE, given)
    limits = []

    class Spy(subprocess.Popen):
        def __init__(self, *arguments, **options):
            limits.append(options["env"][THREADS_VARIABLE])
            super().__init__(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", Spy)
    mpcvit.run(checkpoint, pixels[:1], "semi2k", insecure=True)
    assert limits == [given or str(threads_of_party(2))] * 2


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
def test_no_party_opens_a_port(checkpoint, pixels, nobody_left):
    """SPU's own link is reached through a folder that belongs to this user alone."""
    listening = []

    def progress(what, done, total):
        if what == "running" and not listening:
            for party in children("mpcvit.secure.parties.party").values():
                listening.append((party, ports_of(party), sockets_of(party)))

    mpcvit.run(checkpoint, pixels[:1], "semi2k", insecure=True, progress=progress)
    assert len(listening) == 2
    for _, ports, sockets in listening:
        assert ports == []
        assert sockets == ["own.sock"]


def test_profiles_survive_the_way_into_a_process(checkpoint, pixels, nobody_left):
    profile = replace(load_profile("semi2k"), fraction_bits=16)
    result = mpcvit.run(checkpoint, pixels[:1], profile, insecure=True, reveal="logits")
    assert result.record.profile.fraction_bits == 16
    assert np.isfinite(result.logits).all()

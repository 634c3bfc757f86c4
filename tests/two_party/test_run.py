"""Real processes: the same results and counts as in the simulator, and the modelled seconds."""

import socket
import threading
from dataclasses import replace

import numpy as np

import mpcvit
from mpcvit.classifier import Classifier
from mpcvit.profile import load_profile
from tests.secure.test_costs import counts
from tests.tolerances import FXP18, assert_close


def test_two_processes_agree_with_plaintext_and_simulator(checkpoint, pixels, addresses):
    progress = []
    result = mpcvit.run(
        checkpoint,
        pixels,
        "semi2k",
        reveal="logits",
        progress=lambda *event: progress.append(event),
    )
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels))), FXP18)
    assert [event for event in progress if event[0] == "running"][-1] == ("running", 12, 12)
    simulated = mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", simulate=True)
    assert counts(result.record) == counts(simulated.record)
    assert result.record.program == simulated.record.program
    assert set(result.record.peak_bytes) == {"model owner", "data owner"}
    assert result.record.set_up.received_bytes > 8 * checkpoint.parameter_count


def test_the_default_is_secure_and_warms_up_apart(checkpoint, pixels, addresses):
    result = mpcvit.run(checkpoint, pixels[:1], reveal="logits")
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels[:1]))), FXP18)
    assert result.record.profile["protocol"] == "CHEETAH"
    assert result.record.set_up.warm_up_s > 0
    assert result.record.notes == ()


def test_three_processes(checkpoint, pixels, addresses):
    result = mpcvit.run(checkpoint, pixels[:1], "aby3", reveal="logits")
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels[:1]))), FXP18)
    assert len(addresses) == 3


def test_modelled_seconds_are_those_of_the_emulated_network(checkpoint, pixels, addresses):
    """Within 15 %; the best of five, as the machine may be busy with other things."""
    profile = load_profile("semi2k-wan")
    ratios = []
    for _ in range(5):
        record = mpcvit.run(checkpoint, pixels[:1], profile).record
        ratios.append(record.measured_s / record.modelled_s(profile.network))
        if abs(ratios[-1] - 1) < 0.15:
            return
    raise AssertionError(f"measured over modelled: {ratios}")


def test_a_stranger_on_the_port_disturbs_nothing(checkpoint, pixels, addresses):
    strangers, silent = [], threading.Event()

    def intrude(what, done, total):
        if what == "running" and not strangers:
            for address in addresses:
                host, port = address.rsplit(":", 1)
                for greeting in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\xff" * 5000):
                    stranger = socket.create_connection((host, int(port)))
                    stranger.sendall(greeting)
                    strangers.append(stranger)
            silent.set()

    result = mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", progress=intrude)
    for stranger in strangers:
        stranger.close()
    assert silent.is_set()
    plain = Classifier(checkpoint)
    assert_close(result.logits, plain(plain.preprocess(list(pixels))), FXP18)


def test_profiles_survive_the_way_into_a_process(checkpoint, pixels, addresses):
    profile = replace(load_profile("semi2k"), fraction_bits=16)
    result = mpcvit.run(checkpoint, pixels[:1], profile, reveal="logits")
    assert result.record.profile["fraction_bits"] == 16
    assert np.isfinite(result.logits).all()

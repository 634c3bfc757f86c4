"""All three as processes: through an emulated network, and with a dealer that dies."""

import os
import signal
from dataclasses import replace

import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.profile import Limits, NetworkLink, load_profile
from mpcvit.errors import UserError
from mpcvit.kinds import table
from tests.models import random_pixels, small_checkpoint, small_config
from tests.tolerances import FXP18, assert_close
from tests.two_party.processes import children

CONFIG = small_config(depth=1)
ARCHITECTURE = Architecture.uniform(table.SCALING, depth=1, heads=3, mlp=MlpForm.FUSED)
QUICK = replace(
    load_profile("semi2k-dealer-wan"),
    network=NetworkLink(round_trip_ms=10.0),
    limits=Limits(connect_s=8.0, silence_s=20.0),
)


# for a machine that is busy with other things
PATIENT = replace(QUICK, limits=Limits(connect_s=120.0, silence_s=120.0))


@pytest.fixture(scope="module")
def model():
    return small_checkpoint(CONFIG, ARCHITECTURE), random_pixels(CONFIG, 2)


def test_through_an_emulated_network(model, nobody_left):
    checkpoint, pixels = model
    result = mpcvit.run(checkpoint, pixels, PATIENT, reveal="logits")
    expected = mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", simulate=True)
    assert_close(result.logits, expected.logits, FXP18)
    assert result.record.exchanges == expected.record.exchanges
    assert result.record.offline.fetch_s > 0.01  # the dealer is a round trip away
    assert "collude with neither" in PATIENT.trust


@pytest.mark.long
def test_a_dealer_that_dies(model, nobody_left):
    """While the first inference runs: that ends well, and the second has no material."""
    checkpoint, pixels = model
    struck = []

    def strike(what, done, total):
        if what == "running" and not struck:
            struck.append(True)
            (dealer,) = children("mpcvit.secure.dealing.local_dealer").values()
            os.kill(dealer, signal.SIGKILL)

    profile = replace(QUICK, network=NetworkLink(round_trip_ms=40.0, bandwidth_bytes_per_s=2e5))
    with pytest.raises(UserError, match=r"the dealer at|its dealer") as error:
        mpcvit.run(checkpoint, pixels, profile, progress=strike)
    assert "tried for 8 s" in str(error.value)
    assert "\n" not in str(error.value)

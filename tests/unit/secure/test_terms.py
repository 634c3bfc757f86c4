"""Clients whose terms differ are refused with a sentence that says what to do."""

from types import SimpleNamespace

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.secure.parties.agreement import agreement_of
from mpcvit.secure.service.messages import Hello
from mpcvit.secure.service.server import ServeLimits, Server


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ("semi2k-dealer", "cheetah", "this server works with a dealer; name it with --dealer and"),
        ("cheetah", "semi2k-dealer", "this server works without a dealer; leave out --dealer and"),
        ("semi2k", "cheetah", "the parties differ in profile's protocol: the model owner has SEMI"),
        ("cheetah", "cheetah", ""),
    ],
)
def test_what_a_client_of_another_profile_learns(server, client, reason):
    own = SimpleNamespace(_terms=agreement_of(load_profile(server)), _limits=ServeLimits())
    own._why_other_dealer = lambda hello: Server._why_other_dealer(own, hello)
    hello = Hello(terms=agreement_of(load_profile(client)), images=1, batch_size=1)
    found = Server._refusal(own, hello)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)

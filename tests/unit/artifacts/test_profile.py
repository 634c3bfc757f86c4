"""Profiles: those that come along, and what is refused."""

import pytest

from mpcvit.artifacts.profile import (
    DEALER_DEFAULT,
    SECURE_DEFAULT,
    NetworkLink,
    Profile,
    load_profile,
)
from mpcvit.artifacts.protocols import PROTOCOLS, Dealer
from mpcvit.artifacts.shipped import PROFILES, shipped_names
from mpcvit.codec import decode, encode
from mpcvit.errors import UserError


def refused(tmp_path, text):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        load_profile(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", shipped_names(PROFILES))
def test_every_shipped_profile(name):
    profile = load_profile(name)
    assert load_profile(f"profiles/{name}.toml") == profile
    assert load_profile(profile) is profile
    assert decode(Profile, encode(profile), "again") == profile
    assert name.split("-")[0].upper() == profile.protocol.name
    assert profile.network.is_emulated == name.endswith(("-lan", "-wan"))


def test_the_default_trusts_no_dealer():
    profile = load_profile(SECURE_DEFAULT)
    assert profile.dealer is Dealer.NONE
    assert profile.warning == ""


def test_the_papers_wan():
    network = load_profile("semi2k-wan").network
    assert network == NetworkLink(round_trip_ms=40.0, bandwidth_bytes_per_s=44e6)
    # 1,004 exchanges and 150 MB, without compute
    assert network.seconds(exchanges=1004, sent_bytes=150_000_000) == pytest.approx(
        23.489, abs=1e-3
    )
    assert NetworkLink().seconds(exchanges=1004, sent_bytes=150_000_000) == 0


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('protocol = "ABY3"\nring_bits = 128\nfraction_bits = 26\n')
    assert load_profile(path) == Profile(
        protocol=PROTOCOLS["ABY3"], ring_bits=128, fraction_bits=26
    )


def test_semi2k_has_a_dealer_of_a_third_organisation_unless_it_says_otherwise(tmp_path):
    (tmp_path / "own.toml").write_text('protocol = "SEMI2K"\n')
    profile = load_profile(tmp_path / "own.toml")
    assert profile.dealer is load_profile(DEALER_DEFAULT).dealer is Dealer.THIRD_PARTY
    assert not profile.warning
    assert "collude with neither" in profile.trust
    assert load_profile("semi2k").dealer is Dealer.FIRST_PARTY_INSECURE
    assert "INSECURE" in load_profile("semi2k").warning


def test_an_unknown_name():
    with pytest.raises(UserError, match="did you mean 'semi2k-wan'"):
        load_profile("semi2k-wam")
    with pytest.raises(UserError, match=r"there is no profile /nowhere/semi2k-wan\.toml"):
        load_profile("/nowhere/semi2k-wan.toml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'protocol = "SEMI2K"\ndealer = "first-party-insecure"\nreuse_weight_masks = true',
            'needs dealer = "third-party"',
        ),
        ('protocol = "ABY3"\nreuse_weight_masks = true', "needs SEMI2K"),
        ('protocol = "ABY3"\nowned_weights = true', "needs CHEETAH"),
        ('protocol = "SEMI2"', "did you mean 'SEMI2K'"),
        ("ring_bits = 64", "'protocol' is missing"),
        ('protocol = "ABY3"\nring = 64', "unknown key 'ring'"),
        ('protocol = "ABY3"\nring_bits = 32', "must be 64 or 128"),
        ('protocol = "ABY3"\nfraction_bits = 40', "must lie in [8, 24]"),
        ('protocol = "ABY3"\ndealer = "first-party-insecure"', "ABY3 has no dealer"),
        (
            'protocol = "ABY3"\n[network]\nround_trip_ms = -1.0',
            "'network.round_trip_ms' must not be",
        ),
        ('protocol = "ABY3"\n[limits]\nsilence_s = 0.0', "must be positive"),
        ("protocol = ", "is not valid TOML"),
    ],
)
def test_refusals(tmp_path, text, expected):
    said = refused(tmp_path, text)
    assert expected in said
    assert str(tmp_path) in said  # which file

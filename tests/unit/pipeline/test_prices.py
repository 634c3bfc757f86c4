"""Prices of an experiment: measured once for each model, and named by their source."""

from dataclasses import replace

import pytest

from mpcvit.artifacts.profile import load_profile
from mpcvit.cost.estimate import estimate
from mpcvit.kinds import table
from mpcvit.pipeline.prices import measured_prices
from tests.models import small_config


@pytest.fixture
def measured(monkeypatch):
    """Return the models that were measured; the measurement itself has tests of its own."""
    seen = []

    def measure(model, profile, kinds, progress):
        seen.append((model, kinds))
        return replace(estimate(model, profile.network), source=f"measured {len(seen)}")

    monkeypatch.setattr("mpcvit.pipeline.prices.measure_latency", measure)
    return seen


def quiet(what, done, total):
    pass


def test_a_model_is_measured_once_with_every_kind(tmp_path, measured):
    price = measured_prices(tmp_path, load_profile("semi2k-wan"), quiet)
    config = small_config()
    first = price(config)
    assert first.source == "measured 1"
    assert price(replace(config, attention=table.SCALING)) == first
    again = measured_prices(tmp_path, load_profile("semi2k-wan"), quiet)
    assert again(config) == first
    assert [kinds for _, kinds in measured] == [tuple(table.KINDS.values())]
    wider = price(replace(config, width=30))
    assert wider.source == "measured 2"


def test_another_profile_and_a_damaged_file_are_measured_again(tmp_path, measured):
    config = small_config()
    measured_prices(tmp_path, load_profile("semi2k-wan"), quiet)(config)
    table = measured_prices(tmp_path, load_profile("semi2k-lan"), quiet)(config)
    assert table.network == load_profile("semi2k-lan").network
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    measured_prices(tmp_path, load_profile("semi2k-lan"), quiet)(config)
    assert len(measured) == 3


def test_prices_of_cheetah_are_modelled(tmp_path, measured):
    table = measured_prices(tmp_path, load_profile("cheetah-wan"), quiet)(small_config())
    assert table.source.startswith("modelled from counts")
    assert measured == []

"""Records of private runs: arithmetic, and the file."""

import json
from dataclasses import replace

import pytest

from mpcvit.artifacts.profile import NetworkLink
from mpcvit.artifacts.record import OfflineCost, RunRecord
from mpcvit.codec import encode, load, save
from mpcvit.errors import UserError
from tests.records import RECORD


def test_totals():
    assert RECORD.images == 3
    assert RECORD.exchanges == 100
    assert RECORD.sent_bytes == 10_000
    assert RECORD.measured_s == 20.0
    assert RECORD.set_up.seconds == 10.0


def test_times_add_up_to_what_the_clock_says():
    offline = OfflineCost(received_bytes=1, fetch_s=9.0, wait_s=0.5, held_bytes=1)
    set_up = replace(RECORD.set_up, start_s=0.25, job_s=0.125)
    times = replace(RECORD, set_up=set_up, offline=offline, elapsed_s=40.0).times
    assert times.set_up == {
        "start": 0.25,
        "connect": 1.0,
        "compile": 2.0,
        "weights": 3.0,
        "randomness": 4.625,  # the job, the protocol's own set-up, and the wait for the dealer
        "other parties": 40.0 - 20.0 - 10.875,
    }
    assert times.images == ((2, 6.0), (1, 14.0))
    assert (times.images_s, times.per_image_s) == (20.0, 20 / 3)
    assert times.total_s == 40.0


def test_times_of_a_record_without_a_clock():
    assert RECORD.elapsed_s is None
    assert RECORD.times.total_s == 30.0


def test_modelled_seconds():
    network = NetworkLink(round_trip_ms=40.0, bandwidth_bytes_per_s=1e4)
    # 100 exchanges of 20 ms, 30,000 bytes in the busier direction, 5 s of compute
    assert RECORD.modelled_s(network) == pytest.approx(100 * 0.02 + 3.0 + 5.0)


def test_stages_are_summed_over_batches():
    block, head = RECORD.stages
    assert (block.name, head.name) == ("block 0", "head")
    assert block.exchanges == 40
    assert block.operations[0].executions == 4
    assert head.seconds == 12.0


def test_round_trip(tmp_path):
    save(tmp_path / "record.json", RECORD)
    assert load(RunRecord, tmp_path / "record.json") == RECORD


def test_what_is_no_record(tmp_path):
    path = tmp_path / "record.json"
    for text, expected in (
        ("{", "is not valid JSON"),
        ("{}", "its format is None"),
        (json.dumps({**encode(RECORD), "batches": 3}), "'batches' must be a list"),
        (json.dumps({**encode(RECORD), "new": 3}), "unknown key 'new'"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=expected):
            load(RunRecord, path)
    with pytest.raises(UserError, match="there is no record"):
        load(RunRecord, tmp_path / "absent.json")

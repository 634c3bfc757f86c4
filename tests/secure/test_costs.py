"""What is counted: the same every time, stage by stage, and by every way of running."""

import threading
import time

import pytest

import mpcvit
from mpcvit.artifacts.architecture import Architecture, MlpForm
from mpcvit.artifacts.record import RunRecord
from mpcvit.codec import load, save
from mpcvit.kinds import table
from mpcvit.secure.spu import engine
from mpcvit.secure.spu.engine import ProfileLog
from tests.models import random_pixels, small_checkpoint, small_config
from tests.records import counts

CONFIG = small_config()
ARCHITECTURE = Architecture.uniform(table.RELU_SOFTMAX, depth=2, heads=3, mlp=MlpForm.LINEAR)


@pytest.fixture(scope="module")
def record():
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE)
    pixels = random_pixels(CONFIG, 2)
    return mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", simulate=True).record


def test_stages_are_named_and_identical_ones_cost_the_same(record):
    names = ["input", "embedding", "block 0", "block 1", "head", "output"]
    assert [stage.name for stage in record.batches[0].stages] == names
    by_name = {stage.name: stage for stage in record.batches[0].stages}
    one, other = by_name["block 0"], by_name["block 1"]
    assert (one.sent_bytes, one.exchanges) == (other.sent_bytes, other.exchanges)
    assert counts(record)[: len(names)] == counts(record)[len(names) :]


def test_counts_depend_on_neither_weights_nor_images(record):
    checkpoint = small_checkpoint(CONFIG, ARCHITECTURE, seed=5)
    pixels = random_pixels(CONFIG, 2, seed=7)
    again = mpcvit.run(checkpoint, pixels, "semi2k", reveal="logits", simulate=True).record
    assert counts(again) == counts(record)
    assert again.program == record.program


def test_operations_add_up_to_their_stage(record):
    for stage in record.batches[0].stages[1:-1]:
        assert sum(operation.exchanges for operation in stage.operations) == stage.exchanges
        assert sum(operation.sent_bytes for operation in stage.operations) == stage.sent_bytes
    names = {operation.name for operation in record.stages[2].operations}
    assert {"dot", "dot_general", "divide", "rsqrt", "less"} <= names


def test_a_known_cost(record):
    # a matrix product in a 64-bit ring: masked operands, then a truncation of the result
    embedding = next(stage for stage in record.batches[0].stages if stage.name == "embedding")
    (dot,) = [operation for operation in embedding.operations if operation.name == "dot"]
    patches, inputs, width = CONFIG.patches, 3 * CONFIG.patch_size**2, CONFIG.width
    assert dot.exchanges == 2
    masked = 8 * (patches * inputs + inputs * width)
    assert masked < dot.sent_bytes <= masked + 8 * patches * width


def test_the_label_of_the_dealer_is_in_the_record(record):
    assert any("INSECURE dealer" in note for note in record.notes)
    assert record.profile.dealer == "first-party-insecure"


def test_round_trip(record, tmp_path):
    save(tmp_path / "record.json", record)
    assert load(RunRecord, tmp_path / "record.json") == record


REPORT = """\
[Profiling] SPU execution {name} completed, input processing took 1e-06s, total time 0.5s.
- pphlo.dot, executed 4 times, duration 0.25s, send bytes 90 recv bytes 90, send actions 8, \
recv actions 8
- pphlo.custom_call: mhlo.erf, executed 1 times, duration 0.1s, send bytes 9 recv bytes 9, \
send actions 1, recv actions 1
Link details: total send bytes 99, recv bytes 98, send actions 9, recv actions 9
"""


def test_a_log_without_the_report_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_WRITTEN_WITHIN_S", 0.01)
    path = tmp_path / "spu.log"
    path.write_text(REPORT.format(name="embedding"))
    with pytest.raises(RuntimeError, match="no report of block_0"):
        ProfileLog(path).read("block_0", "block 0", compute_s=0.0)


def test_a_report_that_comes_late_or_after_another_is_waited_for(tmp_path):
    path = tmp_path / "spu.log"
    path.write_text(REPORT.format(name="left_over"))
    whole = REPORT.format(name="probe")

    def write_late():
        for part in (whole[:120], whole[120:]):
            time.sleep(0.05)
            with path.open("a") as file:
                file.write(part)

    writer = threading.Thread(target=write_late)
    writer.start()
    assert ProfileLog(path).read("probe", "probe", compute_s=0.0).exchanges == 9
    writer.join()


def test_a_log_is_read_piece_by_piece_and_through_a_change_of_files(tmp_path):
    path = tmp_path / "spu.log"
    log = ProfileLog(path)
    path.write_text("start\n" + REPORT.format(name="embedding"))
    cost = log.read("embedding", "embedding", compute_s=0.75)
    assert (cost.sent_bytes, cost.received_bytes, cost.exchanges) == (99, 98, 9)
    assert (cost.seconds, cost.compute_s) == (0.5, 0.5)
    assert [operation.name for operation in cost.operations] == ["dot", "erf"]
    with path.open("a") as file:
        file.write(REPORT.format(name="block_0"))
    assert log.read("block_0", "block 0", compute_s=0.25).compute_s == 0.25
    path.write_text(REPORT.format(name="head"))  # a new, shorter file
    assert log.read("head", "head", compute_s=0.25).exchanges == 9

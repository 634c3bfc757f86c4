"""A record of a private run, made up; and the counts of real ones."""

from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import Environment
from mpcvit.artifacts.record import BatchCost, OperationCost, RunRecord, SetUpCost, StageCost


def stage(name, factor):
    return StageCost(
        name=name,
        sent_bytes=1000 * factor,
        received_bytes=3000 * factor,
        exchanges=10 * factor,
        seconds=2.0 * factor,
        compute_s=0.5 * factor,
        operations=(
            OperationCost(name="dot", executions=factor, sent_bytes=7, exchanges=2, seconds=0.1),
        ),
    )


RECORD = RunRecord(
    transport="simulator",
    profile=load_profile("semi2k"),
    architecture="a" * 16,
    program="b" * 16,
    set_up=SetUpCost(connect_s=1.0, compile_s=2.0, weights_s=3.0, warm_up_s=4.0, received_bytes=5),
    batches=(
        BatchCost(images=2, stages=(stage("block 0", 1), stage("head", 2))),
        BatchCost(images=1, stages=(stage("block 0", 3), stage("head", 4))),
    ),
    peak_bytes={"model owner": 1, "data owner": 2},
    notes=("a note",),
    environment=Environment(created="now", commit="c", versions={"spu": "0.9.5"}),
)


def counts(record):
    return [
        (stage.name, stage.sent_bytes, stage.received_bytes, stage.exchanges)
        for batch in record.batches
        for stage in batch.stages
    ]

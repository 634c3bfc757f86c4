"""A folder with one of everything that a report can be made from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.artifacts.provenance import Provenance, write_rows
from mpcvit.artifacts.record import BatchCost
from mpcvit.codec import save
from mpcvit.kinds import table
from mpcvit.report.story import SECONDS
from tests.models import small_checkpoint, small_config
from tests.records import RECORD, stage
from tests.searches import ALPHA, make_result

COLOUR = (200, 30, 90)  # of the picture that was classified
RESULTS = Path(__file__).parents[3] / "results"
K = table


def trained(architecture, top1, config="cifar10-test"):
    checkpoint = small_checkpoint(small_config(), architecture)
    provenance = Provenance(
        origin="trained",
        environment=checkpoint.provenance.environment,
        config={"name": config, "seed": 0, "train": {"epochs": 2}},
        data_fingerprint="f" * 64,
        metrics={"test_top1": top1},
    )
    return replace(checkpoint, provenance=provenance)


def mixed():
    tokens = small_config().tokens
    forms = (MlpForm.ACTIVATED,) + (MlpForm.FUSED_RELU,) * (tokens - 1)
    return Architecture(
        layers=(
            LayerArchitecture(heads=(K.RELU_SOFTMAX, K.SCALING, K.SCALING)),
            LayerArchitecture(heads=(K.SCALING,) * 3, mlp=forms),
        )
    )


def predicted(runs, *answers):
    return {
        name: value
        for run, (predicted, seconds) in zip(runs, answers, strict=True)
        for name, value in ((run, predicted), (run + SECONDS, seconds))
    }


def record(**changes):
    profile = load_profile("semi2k-wan")
    batch = BatchCost(images=2, stages=(stage("block 0", 1), stage("block 1", 2), stage("head", 3)))
    made = replace(
        RECORD, transport="processes", profile=profile, batches=(batch,), notes=("beware <b>",)
    )
    return replace(made, **changes)


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "runs"
    plain = Architecture.uniform(K.SOFTMAX, depth=2, heads=3)
    trained(plain, 0.9).save(folder / "softmax" / "seed-0" / "model.safetensors")
    trained(mixed(), 0.8).save(folder / "mpcvit-0.3" / "seed-0" / "model.safetensors")
    make_result(ALPHA).save(folder / "search" / "seed-0" / "search.json")
    run = folder / "mpcvit-0.3" / "seed-0"
    save(run / "plain.json", record())
    short = (BatchCost(images=2, stages=(stage("block 0", 1),)),)
    save(run / "lowered.json", record(form="lowered", batches=short))
    rows = [
        {"epoch": epoch, "step": epoch, "train_loss": 2 / epoch, "test_loss": 1 / epoch}
        | {"train_top1": 0.2 * epoch, "test_top1": 0.3 * epoch}
        for epoch in (1, 2)
    ]
    (run / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_rows(
        folder / "pipeline.csv",
        [
            {
                "network": "mpcvit-0.3",
                "form": form,
                "top1": 80,
                "images": 2,
                "batch": 1,
                "agree": 2,
                "exchanges": exchanges,
                "sent_mb": 1.5,
                "modelled_s": seconds,
                "measured_s": seconds + 0.5,
                "protocol": "SEMI2K",
                "config": "cifar10-test",
            }
            for form, exchanges, seconds in (("plain", 100, 2.0), ("lowered", 25, 0.5))
        ],
    )
    write_rows(
        folder / "lowering.csv",
        [
            {"network": "scaling", "form": form, "profile": "semi2k-wan", "batch": 16}
            | {
                "exchanges": exchanges,
                "sent_mb": 2.0,
                "modelled_s": 3.0,
                "measured_s": "",
                "paper_s": 44.0,
            }
            for form, exchanges in (("plain", 90), ("lowered", 30))
        ],
    )
    Image.new("RGB", (32, 32), COLOUR).save(folder / "0.png")
    runs = ("mpcvit-0.3, plain", "mpcvit-0.3, lowered")
    write_rows(
        folder / "predictions.csv",
        [
            {"image": "0.png", "truth": "cat"} | predicted(runs, ("cat", "2.5"), ("dog", "0.75")),
            {"image": "lost.png", "truth": "<b>"} | predicted(runs, ("", ""), ("<b>", "0.8")),
        ],
    )
    write_rows(folder / "unrelated.csv", [{"a": 1}])
    (folder / "broken").mkdir()
    (folder / "broken" / "model.safetensors").write_bytes(b"no tensors")
    return folder, RESULTS

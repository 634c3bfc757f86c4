"""Networks side by side."""

from dataclasses import replace

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import DataConfig
from mpcvit.artifacts.provenance import Environment, Provenance
from mpcvit.artifacts.resolve import made_explicit
from mpcvit.cost.estimate import estimate
from mpcvit.kinds import table
from mpcvit.model.checkpoint import Checkpoint
from mpcvit.model.vit import init_parameters
from mpcvit.report.networks import (
    NetworkRow,
    activated_share,
    best_trade_offs,
    read_networks,
)
from tests.models import small_config
from tests.searches import random_costs

K = table


def make_checkpoint(architecture, metrics=None):
    config = small_config()
    return Checkpoint(
        model=config,
        architecture=architecture,
        data=DataConfig(mean=(0.5,) * 3, std=(0.5,) * 3),
        classes=tuple("abcdefg"),
        parameters=init_parameters(config, architecture, 0),
        provenance=Provenance(
            origin="trained",
            environment=Environment(created="", commit="", hardware=""),
            metrics=metrics or {},
        ),
    )


def test_rows_of_run_folders_and_files(tmp_path):
    plain = Architecture.uniform(K.SCALING, depth=2, heads=3)
    make_checkpoint(plain, {"test_top1": 0.5}).save(tmp_path / "a" / "seed-0" / "model.safetensors")
    make_checkpoint(plain).save(tmp_path / "b.safetensors")
    (tmp_path / "empty").mkdir()
    rows, empty = read_networks([tmp_path / "a", tmp_path / "b.safetensors", tmp_path / "empty"])
    assert [row.top1 for row in rows] == [0.5, None]
    assert rows[0].name == str(tmp_path / "a" / "seed-0")
    assert empty == [tmp_path / "empty"]
    table = estimate(small_config())
    assert rows[0].modelled_s == table.seconds(table.price(plain))


def test_forms_that_the_configuration_chooses_have_their_prices():
    plain = Architecture.uniform(K.SCALING, depth=2, heads=3)
    table = random_costs(small_config())
    row = NetworkRow.of("x", make_checkpoint(plain), table)
    explicit = made_explicit(small_config(), plain)
    assert explicit != plain
    assert row.modelled_s == table.seconds(table.price(explicit))


def test_share_of_tokens_that_keep_gelu():
    g, f = MlpForm.ACTIVATED, MlpForm.FUSED
    layers = (
        LayerArchitecture(heads=(K.SCALING,), mlp=(g, f, f, f)),
        LayerArchitecture(heads=(K.SCALING,), mlp=g),
    )
    assert activated_share(Architecture(layers=layers), 4) == 5 / 8


def test_only_networks_that_none_beats_are_marked():
    row = NetworkRow.of("x", make_checkpoint(Architecture.uniform(K.SCALING, depth=2, heads=3)))
    named = [
        replace(row, name=name, top1=top1, modelled_s=seconds)
        for name, top1, seconds in (
            ("fast", 0.6, 1.0),
            ("good", 0.9, 3.0),
            ("beaten", 0.6, 2.0),
            ("twin", 0.9, 3.0),
            ("unknown", None, 0.1),
        )
    ]
    assert best_trade_offs(named) == {"fast", "good", "twin"}

"""The latency table: prices, its file, and the modelled counts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture, MlpForm
from mpcvit.artifacts.config import ModelConfig, NormForm, load_config
from mpcvit.artifacts.latency import WAN, ChoiceCost, Cost, LatencyTable, LayerCosts
from mpcvit.artifacts.profile import NetworkLink
from mpcvit.artifacts.provenance import read_rows
from mpcvit.bench.networks import networks_as_written
from mpcvit.codec import encode
from mpcvit.cost.estimate import estimate
from mpcvit.errors import UserError
from mpcvit.kinds import table as kinds_table

ROOT = Path(__file__).parents[3]
K = kinds_table
CIFAR = ModelConfig(
    image_size=32,
    patch_size=4,
    classes=10,
    depth=7,
    heads=4,
    width=256,
)


def make_table(**changes):
    attention = {
        K.RELU_SOFTMAX: ChoiceCost(shared=Cost(exchanges=40), per_unit=Cost(sent_bytes=3e6)),
        K.SCALING: ChoiceCost(shared=Cost(exchanges=2), per_unit=Cost(sent_bytes=1e6)),
    }
    mlp = {
        MlpForm.ACTIVATED: ChoiceCost(shared=Cost(exchanges=45), per_unit=Cost(sent_bytes=1e5)),
        MlpForm.FUSED: ChoiceCost(shared=Cost(exchanges=1), per_unit=Cost(sent_bytes=1e4)),
    }
    values = {
        "source": "made up",
        "network": WAN,
        "heads": 3,
        "tokens": 5,
        "layers": (LayerCosts(attention=attention, mlp=mlp),) * 2,
        "rest": Cost(exchanges=7, sent_bytes=11, compute_s=0.5),
    }
    return LatencyTable(**{**values, **changes})


@pytest.mark.parametrize(
    ("counted", "config"),
    [
        ("network-cifar", "cifar10"),
        ("network-variants", "cifar10"),
        ("mpcvit-plus", "cifar10"),
        ("network-tiny-imagenet", "tiny-imagenet"),
    ],
)
def test_the_model_agrees_with_every_network_that_was_counted(counted, config):
    """Two exchanges carry image and logits; a division sends a byte less than its price."""
    networks = networks_as_written(load_config(Path(config)).model)
    rows = read_rows(ROOT / "results" / "secure" / f"{counted}.csv")
    assert len(rows) >= 6
    for row in rows:
        model, architecture = networks[row["network"]]
        assert architecture.digest() == row["architecture"], row["network"]
        cost = estimate(model).price(architecture)
        assert cost.exchanges == int(row["exchanges"]) - 2, row["network"]
        assert cost.sent_bytes == pytest.approx(1e6 * float(row["sent_mb"]), rel=0.002)


def test_the_model_orders_kinds_and_forms_as_their_operations_do():
    table = estimate(CIFAR)

    def seconds(kind, mlp=MlpForm.ACTIVATED):
        return table.seconds(table.price(Architecture.uniform(kind, depth=7, heads=4, mlp=mlp)))

    ordered = (K.SCALING, K.SQUARE, K.RELU, K.RELU6, K.QUAD2, K.RELU_SOFTMAX, K.SOFTMAX)
    values = [seconds(kind) for kind in ordered]
    assert values == sorted(values)
    forms = (MlpForm.FUSED, MlpForm.FUSED_RELU, MlpForm.LINEAR_RELU, MlpForm.ACTIVATED)
    values = [seconds(K.SCALING, form) for form in forms]
    assert values == sorted(values)
    linear_norm = estimate(replace(CIFAR, norm=NormForm.LINEAR))
    assert linear_norm.rest.exchanges < table.rest.exchanges


def test_exchanges_are_shared_by_the_heads_of_a_layer_and_bytes_are_not():
    table = make_table()
    rs, s = K.RELU_SOFTMAX, K.SCALING
    one = table.price_layer(0, LayerArchitecture(heads=(rs, s, s)))
    two = table.price_layer(0, LayerArchitecture(heads=(rs, rs, s)))
    none = table.price_layer(0, LayerArchitecture(heads=(s, s, s)))
    assert one.exchanges == two.exchanges == none.exchanges + 40
    assert two.sent_bytes - one.sent_bytes == pytest.approx(2e6)
    rows = table.price_layer(0, LayerArchitecture(heads=((rs, rs, s, s, s), s, s)))
    assert rows.sent_bytes - none.sent_bytes == pytest.approx(2 / 5 * 2e6)
    assert rows.exchanges == one.exchanges


def test_tokens_of_an_mlp_share_exchanges_too():
    table = make_table()
    mixed = (MlpForm.ACTIVATED, MlpForm.FUSED, MlpForm.FUSED, MlpForm.FUSED, MlpForm.FUSED)
    cost = table.price_layer(1, LayerArchitecture(heads=(), mlp=mixed))
    assert (cost.exchanges, cost.sent_bytes) == (46, pytest.approx(1e5 + 4e4))


def test_price_adds_up_layers_and_the_rest():
    table = make_table()
    architecture = Architecture.uniform(K.SCALING, depth=2, heads=3, mlp=MlpForm.FUSED)
    layer = table.price_layer(0, architecture.layers[0])
    assert table.price(architecture) == layer + layer + table.rest
    with pytest.raises(UserError, match="4 heads, but the model has 3"):
        table.price(Architecture.uniform(K.SCALING, depth=2, heads=4))
    with pytest.raises(UserError, match=r"no cost of 'softmax' in layers\[0\].attention"):
        table.price(Architecture.uniform(K.SOFTMAX, depth=2, heads=3, mlp=MlpForm.FUSED))


def test_file_round_trip(tmp_path):
    for table in (make_table(details={"a": 1}), estimate(CIFAR, NetworkLink(round_trip_ms=1.5))):
        table.save(tmp_path / "latency.json")
        assert LatencyTable.load(tmp_path / "latency.json") == table


def test_files_of_former_formats_are_read(tmp_path):
    """The first names the two prices of a choice `once` and `each`; neither prices norms."""
    table, path = make_table(), tmp_path / "latency.json"
    table.save(path)
    document = json.loads(path.read_text())
    for layer in document["layers"]:
        for later in ("products", "norms", "activation", "tokens", "fewer"):
            del layer[later]
    document["format"] = "mpcvit-latency/2"
    path.write_text(json.dumps(document))
    assert LatencyTable.load(path) == table
    text = path.read_text()
    for new, old in (("-latency/2", "-latency/1"), ("shared", "once"), ("per_unit", "each")):
        assert new in text
        text = text.replace(new, old)
    path.write_text(text)
    assert LatencyTable.load(path) == table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="mpcvit-architecture/1"), "is not a latency file"),
        (lambda d: d.update(typo=1), "unknown key 'typo'"),
        (lambda d: d.pop("heads"), "key 'heads' is missing"),
        (lambda d: d.update(layers=[3]), r"'layers\[0\]' must be a section"),
        (
            lambda d: d["layers"][0]["attention"].update(softmx={}),
            r"'layers\[0\].attention' cannot be 'softmx'; did you mean 'softmax'\?",
        ),
        (
            lambda d: d["layers"][1]["mlp"]["fused"].update(per_unit={"exchange": 1}),
            r"unknown key 'layers\[1\].mlp.fused.per_unit.exchange'",
        ),
        (
            lambda d: d["network"].update(round_trip_ms=-1),
            "'network.round_trip_ms' must not be negative",
        ),
    ],
)
def test_foreign_files_are_refused(tmp_path, change, message):
    path = tmp_path / "latency.json"
    document = encode(make_table())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=message):
        LatencyTable.load(path)


@pytest.mark.parametrize("name", ["cifar10", "tiny-imagenet"])
def test_shipped_files_are_the_estimate_of_their_configuration(name):
    shipped = LatencyTable.load(ROOT / "latency" / f"{name}.json")
    assert shipped == estimate(load_config(Path(name)).model)
    assert "modelled from counts" in shipped.source


def test_a_missing_file_and_another_shape_are_refused(tmp_path):
    with pytest.raises(UserError, match="there is no latency file"):
        LatencyTable.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot read"):
        LatencyTable.load(tmp_path / "bad.json")
    with pytest.raises(UserError, match="made for 7 layers, but the model has 6"):
        estimate(CIFAR).require_shape(replace(CIFAR, depth=6))

"""Charts say what the collected say, and where each number comes from."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from mpcvit.artifacts.architecture import Architecture, LayerArchitecture
from mpcvit.artifacts.forms import Activation, FormChoice, NormForm
from mpcvit.artifacts.profile import load_profile
from mpcvit.experiments.published import published_trade_offs
from mpcvit.kinds import table
from mpcvit.report.charts import (
    heads,
    layers,
    learning,
    lowering,
    operations,
    precision,
    seconds,
    times,
    trade_off,
)
from mpcvit.report.charts.chart import hues, stacked_chart
from mpcvit.report.charts.trade_off import TradeOff
from mpcvit.report.collect import (
    Collected,
    Named,
    Table,
    TableKind,
    TrainedNetwork,
    collect,
)
from tests.models import small_config
from tests.unit.report.conftest import RESULTS


@pytest.fixture(scope="module")
def collected(places):
    return collect(places)


def row_of(table, network):
    with (RESULTS / table).open() as rows:
        return next(row for row in csv.DictReader(rows) if row["network"] == network)


def by_name(chart):
    return {series.name: series for series in chart.series}


def test_trade_off_keeps_modelled_measured_and_published_apart(collected):
    chart, *accuracies = trade_off.charts(collected, published_trade_offs())
    series = by_name(chart)
    published = series["mpcvit-distilled, published"]
    assert [point.label for point in published.points] == [
        f"mpcvit-{ratio}-distilled" for ratio in (0.1, 0.3, 0.5, 0.7)
    ]
    assert (published.points[1].x, published.points[1].y) == (52.88, 94.08)
    (lowered,) = series["mpcvit, lowered (cifar10-test), measured"].points
    assert (lowered.x, lowered.y) == (1.0, 80)
    assert "mpcvit, lowered (cifar10-test), modelled" not in series  # the clock's take its place
    ours = series["softmax (cifar10-tiny), modelled"].points[0]
    row = row_of("cifar10-tiny/trade-off.csv", "softmax")
    assert (ours.y, ours.low, ours.high) == tuple(
        float(row[column]) for column in ("top1_mean", "top1_low", "top1_high")
    )
    assert all(
        name.endswith(f", {one.origin}") for name, one in series.items()
    )  # a name tells where its seconds come from
    bars = next(chart for chart in accuracies if chart.id == "accuracy-cifar10-tiny-trade-off")
    index = bars.categories.index("softmax")
    assert bars.series[0].values[index] == ours.y
    assert bars.series[0].intervals[index] == (ours.low, ours.high)


def test_published_points_only_beside_their_own_data():
    found = trade_off.trade_off_chart("digits", [], published_trade_offs())
    assert not found.series


def test_the_front_leaves_out_what_is_beaten():
    def one(name, seconds, top1):
        return TradeOff(data="d", network=name, top1=top1, seconds=seconds, origin="modelled")

    chart = trade_off.trade_off_chart("d", [one("a", 1, 50), one("b", 2, 40), one("c", 3, 60)], [])
    front = by_name(chart)["best trade-offs, modelled"]
    assert [point.label for point in front.points] == ["a", "c"]


def test_heads_and_alpha(collected):
    became, alpha = heads.charts(collected)
    panel = became.panels[0]  # those with a choice come first
    assert panel.name == "mpcvit-0.3"
    assert [cell.text for cell in panel.cells[0]] == ["R", "S", "S", "g"]
    assert panel.cells[1][3].words == "9 of 10 tokens fused_relu, 1 of 10 tokens activated"
    assert set(became.kinds) == {
        *("softmax", "scaling", "relu_softmax", "activated", "mixed over tokens")
    }
    assert alpha.panels[0].cells[0][0].share == 0.9


def test_norms_activations_and_tokens_that_differ_have_columns():
    forms = (
        FormChoice(norm1=NormForm.LAYER, activation=Activation.GELU),
        FormChoice(norm1=NormForm.BATCH, activation=Activation.QUADRATIC, tokens=5),
    )
    architecture = Architecture(
        layers=tuple(LayerArchitecture(heads=(table.SCALING,) * 3, form=form) for form in forms)
    )
    model = small_config(image_size=8)
    network = TrainedNetwork(row=None, model=model, architecture=architecture, provenance=None)
    named = Named(name="found", path=Path("found"), value=network)
    (chart,) = heads.charts(Collected(networks=(named,)))
    (panel,) = chart.panels
    assert panel.columns[3:] == ("MLP", "tokens", "norm1", "activation")  # norm2 is the same
    assert [[cell.text for cell in line[4:]] for line in panel.cells] == [
        ["17", "la", "ge"],
        ["5", "ba", "qu"],
    ]
    assert panel.cells[1][4].share == 5 / 17
    assert {"norm: layer", "norm: batch", "activation: quadratic"} <= set(chart.kinds)


def test_whatever_a_search_logs_by_layer_is_drawn():
    log = [
        {"epoch": epoch, "train_loss": 1.0, "norm": [[0.25, 0.5], [0.75, 1.0]], "split": []}
        for epoch in (1, 2)
    ]
    values, means, movement = heads.search_charts(log)
    assert [cell.text for cell in values.panels[0].cells[1]] == ["0.75", "1.00"]
    assert [point.y for point in means.series[0].points] == [0.375, 0.875]
    assert [len(series.points) for series in movement.series] == [2, 2]


def test_the_parts_of_a_runs_seconds_add_up(collected):
    whole, by_image = times.charts(collected)
    timed = [one.value for one in collected.records if one.value.was_timed]
    assert len(whole.categories) == len(timed) == 2
    for place, record in enumerate(sorted(timed, key=lambda one: -one.times.total_s)):
        parts = [series.values[place] for series in whole.series]
        assert sum(parts) == pytest.approx(record.times.total_s)
        modelled = [series.values[place] for series in by_image.series]
        assert sum(modelled) == pytest.approx(
            record.modelled_s(record.profile.network) / record.images
        )


def test_layers_of_records_and_tables(collected):
    in_seconds, in_bytes = layers.charts(collected)
    series = by_name(in_seconds)
    modelled = series["mpcvit-0.3, plain, 2 images at a time, modelled"].points
    assert [point.x for point in modelled] == [0, 1]
    # for one of two images: 10 exchanges of 20 ms, 3,000 bytes at 44 MB/s, 0.5 s of compute
    assert modelled[0].y == pytest.approx((10 * 0.02 + 3000 / 44e6 + 0.5) / 2)
    assert series["mpcvit-0.3, plain, 2 images at a time, measured"].points[1].y == 2.0
    assert by_name(in_bytes)["softmax, layers, counted"].points[0].y == pytest.approx(649.3018)


def test_operations(collected):
    charts = {chart.id: chart for chart in operations.charts(collected)}
    assert charts["operation-exchanges"].series[0].name == "dot"
    assert charts["operation-exchanges"].series[0].values == (6.0, 2.0)  # plain, lowered
    assert charts["operation-exchanges"].caption.startswith("For the images that run at a time")
    assert "parts-softmax-semi2k" in charts
    stack = charts["parts-block-by-heads-semi2k"]
    assert stack.categories == ("1 heads", "2 heads", "4 heads", "8 heads")


def test_few_operations_have_a_name_of_their_own():
    many = {f"operation {place}": 100 - place for place in range(12)}
    few = {f"operation {place}": place for place in range(12)}
    largest = operations._largest([{"net": many}, {"net": few}])
    assert {"operation 0", "operation 11"} < set(largest)  # each the largest of a measure
    assert len(largest) == operations._MOST
    colours = {**hues(largest), "others": -1}  # an operation has one colour, whatever is measured
    for total in (many, few):
        bar = operations._with_rest(total, hues(largest))
        (chart,) = stacked_chart("id", "title", "", "MB", {"net": bar}, "counted", colours)
        assert sum(series.values[0] for series in chart.series) == sum(total.values())
        assert {series.name: series.hue for series in chart.series} == {
            name: hue for name, hue in colours.items() if bar[name]
        }
    assert stacked_chart("id", "title", "", "MB", {"net": {"none": 0.0}}, "counted") == []


def test_runs_name_their_protocol_only_if_there_are_several(collected):
    (semi2k,) = {one.value.profile for one in collected.records}
    assert not any("SEMI2K" in name for name in layers.named_records(collected))
    first, *others = collected.records
    other = replace(first.value, profile=load_profile("cheetah"))
    mixed = replace(collected, records=(replace(first, value=other), *others))
    names = list(layers.named_records(mixed))
    assert "CHEETAH" in names[0]
    assert semi2k.protocol.name in names[1]


def test_plain_against_lowered(collected):
    charts = {chart.id: chart for chart in lowering.charts(collected)}
    exchanges = charts["lowered-exchanges"]
    for category, plain, lowered in (
        ("mpcvit-0.3, SEMI2K", 100, 25),
        ("scaling, semi2k-wan, 16 images at a time", 90, 30),
    ):
        place = exchanges.categories.index(category)
        assert [series.values[place] for series in exchanges.series] == [plain, lowered]
    assert "3.0 to " in exchanges.caption
    assert charts["lowered-measured-s"].series[1].origin == "measured"
    published = charts["lowered-modelled-s"].series[2]
    assert (published.origin, published.values[place]) == ("published", 44.0)
    assert lowering.charts(Collected()) == []


def test_seconds_stand_beside_the_papers(collected):
    charts = {chart.id: chart for chart in seconds.charts(collected)}
    networks = charts["seconds-network-cifar"]
    place = networks.categories.index("softmax")
    row = row_of("secure/network-cifar.csv", "softmax")
    assert {series.origin: series.values[place] for series in networks.series} == {
        "modelled": float(row["modelled_s"]),
        "measured": float(row["measured_s"]),
        "published": 112.23,
    }


def test_profiles_are_measured_beside_each_other():
    rows = tuple(
        {"network": network, "profile": profile, "modelled_s": modelled, "measured_s": measured}
        for network, profile, modelled, measured in (
            ("a", "first", "2", "2.1"),
            ("a", "dealer", "2", "2.2"),
            ("b", "first", "3", "3.1"),
        )
    )
    table = Table(kind=TableKind.NETWORKS, rows=rows)
    (chart,) = seconds.charts(
        Collected(tables=(Named(name="both", path=Path("both.csv"), value=table),))
    )
    assert chart.categories == ("b", "a")
    assert [(one.name.rpartition(", ")[2], one.values) for one in chart.series] == [
        ("modelled", (3.0, 2.0)),
        ("first", (3.1, 2.1)),
        ("dealer", (None, 2.2)),
    ]


def test_curves(collected):
    top1, loss = learning.charts(replace(collected, tables=()))
    assert [point.y for point in by_name(top1)["mpcvit-0.3, test"].points] == [30, 60]
    assert [point.y for point in by_name(loss)["mpcvit-0.3, train"].points] == [2, 1]


def test_curves_of_an_experiment_are_means_over_seeds():
    table = Table(
        kind=TableKind.EPOCHS,
        rows=(
            epoch("scaling", seed=0, epoch=1, train_loss=2.0, test_top1=""),
            epoch("scaling", seed=0, epoch=2, train_loss=1.0, test_top1=0.5),
            epoch("softmax", seed=0, epoch=1, train_loss=3.0, test_top1=""),
            epoch("scaling", seed=1, epoch=1, train_loss=2.5, test_top1=""),
            epoch("scaling", seed=1, epoch=2, train_loss=1.2, test_top1=0.7),
        ),
    )
    named = Named(name="cifar10/trade-off-epochs", path=Path("x.csv"), value=table)
    top1, loss = learning.charts(Collected(tables=(named,)))
    assert loss.id == "learning-loss-cifar10-trade-off-epochs"
    curves = {name: [(p.x, p.y) for p in one.points] for name, one in by_name(loss).items()}
    assert curves == {"scaling, train": [(1, 2.25), (2, 1.1)], "softmax, train": [(1, 3.0)]}
    assert [(p.x, p.y) for p in by_name(top1)["scaling, test"].points] == [(2, 60.0)]


def epoch(network, **columns):
    return {"network": network} | {name: str(value) for name, value in columns.items()}


def test_precision(collected):
    (chart,) = precision.charts(collected)
    assert chart.log
    assert len(chart.rows()) == 12

"""Figures hold what their charts say: axes, series, labels, intervals, and words for each value."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_rgb

from mpcvit.artifacts.provenance import write_rows
from mpcvit.report.charts.chart import (
    BarChart,
    BarSeries,
    Cell,
    GridChart,
    Panel,
    Point,
    Series,
    XYChart,
)
from mpcvit.report.charts.trade_off import TradeOff, trade_off_chart
from mpcvit.report.figures import draw, to_svg, write_figures
from mpcvit.report.page import draw_table
from mpcvit.report.palette import colour_of, ink_on
from mpcvit.report.runs import draw_run
from tests.unit.report.conftest import RESULTS

SVG = "{http://www.w3.org/2000/svg}"


def xy(*series, **settings):
    labels = {"id": "xy", "title": "title", "x_label": "epoch", "y_label": "loss"}
    return XYChart(**labels, series=series, **settings)


def line(name, *points, **settings):
    return Series(
        name=name,
        points=tuple(Point(x=x, y=y, label=f"{name} {x}") for x, y in points),
        origin=settings.pop("origin", "trained"),
        **settings,
    )


def titles(svg):
    return [title.text for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def test_a_plane_has_a_line_a_label_and_an_entry_for_each_series():
    first = line("a", (1, 2.0), (2, 1.0))
    (axes,) = draw([xy(first, line("b", (1, 3.0), hue=1, origin="published", dashed=True))]).axes
    assert [one.get_xydata().tolist() for one in axes.lines] == [[[1, 2], [2, 1]], [[1, 3]]]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title()) == ("epoch", "loss", "title")
    ours, published = axes.lines
    assert ours.get_markerfacecolor() != "none"
    assert published.get_markerfacecolor() == "none"
    assert (ours.get_linestyle(), published.is_dashed()) == ("-", True)
    assert ours.get_color() != published.get_color()


def test_series_of_one_colour_have_different_markers():
    (axes,) = draw([xy(line("a", (1, 1)), line("b", (1, 2)))]).axes
    first, second = axes.lines
    assert first.get_color() == second.get_color()
    assert first.get_marker() != second.get_marker()


def test_nothing_is_told_apart_by_colour_alone():
    dashed = [line(str(hue), (1, 1), (2, 2), hue=hue, marked=False, dashed=True) for hue in (0, 1)]
    first, second = draw([xy(*dashed)]).axes[0].lines
    assert first._dash_pattern != second._dash_pattern
    series = tuple(
        BarSeries(name=str(hue), values=(1.0,), origin="counted", hue=hue) for hue in range(7)
    )
    labels = {"id": "bars", "title": "t", "value_label": "s", "categories": ("one",)}
    (axes,) = draw([BarChart(**labels, series=series, stacked=True)]).axes
    assert len({bar.get_hatch() for bar in axes.patches}) == 7


def test_published_series_share_an_entry_where_labels_name_them():
    published = [line(name, (1, 2.0), origin="published", dashed=True) for name in "bc"]
    (axes,) = draw([xy(line("a", (1, 1.0)), *published, labelled=True)]).axes
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["a", "published by the paper"]


def test_labels_are_written_where_they_hide_nothing():
    points = [
        TradeOff(data="d", network=name, top1=top1, seconds=seconds, origin="modelled")
        for name, seconds, top1 in (("one", 1, 50), ("two", 2, 60), ("twin", 2, 60.01))
    ]
    figure = draw([trade_off_chart("d", points)])
    figure.draw_without_rendering()
    texts = figure.axes[0].texts
    assert {"one", "two"} <= {text.get_text() for text in texts}
    boxes = [text.get_window_extent() for text in texts]
    for index, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:index])


def test_a_point_beside_the_axis_keeps_its_label_and_seconds_begin_at_zero():
    points = [
        TradeOff(data="d", network=name, top1=top1, seconds=seconds, origin="modelled")
        for name, seconds, top1 in (  # the demo's
            ("found", 14.2, 78.04),
            ("mpcvit", 18.3, 76.88),
            ("softmax", 29.8, 73.23),
            ("mpcvit, lowered", 4.8, 76.8),
            ("found, lowered", 1.8, 77.65),
            ("published", 120, 92.4),
            ("mpcvit-distilled", 53, 94.3),
        )
    ]
    figure = draw([trade_off_chart("d", points)])
    (axes,) = figure.axes
    assert axes.get_xlim()[0] == 0
    assert "found, lowered" in {text.get_text() for text in axes.texts}
    boxes = [text.get_window_extent() for text in axes.texts]
    assert all(axes.bbox.y0 <= box.y0 and box.y1 <= axes.bbox.y1 for box in boxes)


def test_letters_can_be_read_on_every_colour():
    """By the contrast of WCAG, which asks for 3 of large text and of graphics."""

    def luminance(colour):
        parts = [
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
            for part in to_rgb(colour)
        ]
        return sum(
            weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True)
        )

    for hue in range(-1, 8):
        one, other = luminance(colour_of(hue)), luminance(ink_on(colour_of(hue)))
        assert (max(one, other) + 0.05) / (min(one, other) + 0.05) > 4.4, hue


def test_a_phone_has_less_side_by_side():
    cells = ((Cell(text="R", words="relu", kind="relu"),) * 8,)
    names = tuple(f"head {place}" for place in range(8))
    panels = tuple(Panel(name=str(place), columns=names, cells=cells) for place in range(3))
    grid = GridChart(id="grid", title="t", panels=panels, kinds={"relu": 0})
    wide, narrow = draw([grid]), draw([grid], room=4.0)
    assert [
        len({round(axes.get_position().x0, 2) for axes in figure.axes if axes.get_visible()})
        for figure in (wide, narrow)
    ] == [2, 1]
    assert wide.get_figwidth() < 8  # so that letters stay readable at the page's width


def test_bars_carry_their_values_and_intervals():
    series = BarSeries(
        name="ours",
        values=(50.0, 60.0),
        origin="trained",
        intervals=((48.0, 52.0), (60.004, 61.0)),  # the second, by rounding, above its own value
    )
    labels = {"id": "bars", "title": "t", "value_label": "%", "categories": ("one", "two")}
    (axes,) = draw([BarChart(**labels, series=(series,))]).axes
    assert [bar.get_width() for bar in axes.patches] == [50, 60]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    assert {"50", "60"} <= {text.get_text() for text in axes.texts}
    (intervals,) = axes.collections
    ends = [segment[:, 0].tolist() for segment in intervals.get_segments()]
    assert ends == [[48, 52], [60, 61]]


def test_stacked_bars_begin_where_the_last_ended():
    series = tuple(
        BarSeries(name=name, values=values, origin="counted", hue=hue)
        for hue, (name, values) in enumerate((("a", (1.0, 2.0)), ("b", (3.0, None))))
    )
    labels = {"id": "bars", "title": "t", "value_label": "s", "categories": ("one", "two")}
    (axes,) = draw([BarChart(**labels, series=series, stacked=True)]).axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 1), (0, 2), (1, 3)]


def test_every_value_has_words_in_the_page():
    chart = xy(line("a", (1, 2.0), (2, 1.0)), line("b", (1, 3.0), marked=False))
    assert titles(to_svg(chart)) == [
        "a 1 · a\nloss: 2\nepoch: 1",
        "a 2 · a\nloss: 1\nepoch: 2",
        "b",
    ]
    cells = ((Cell(text="R", words="relu", kind="relu"), Cell(text="S", words="s", kind="s")),)
    panel = Panel(name="net <1>", columns=("head 0", "head 1"), cells=cells)
    grid = GridChart(id="grid", title="t", panels=(panel,), kinds={"relu": 0, "s": 1})
    assert titles(to_svg(grid)) == [
        "net <1>\nlayer 0, head 0: relu",
        "net <1>\nlayer 0, head 1: s",
    ]


def test_figures_are_the_same_when_drawn_again(tmp_path):
    chart = xy(line("a", (1, 10.0), (2, 20.0)), whole_x=True)
    first, again = (
        [path.read_bytes() for path in write_figures(tmp_path / name, [chart])]
        for name in ("first", "again")
    )
    assert first == again
    ticks = re.findall(r">([\d.]+)</text>", first[1].decode())  # text of an SVG stays text
    assert {"1", "2", "10", "20"} <= set(ticks)
    assert not [tick for tick in ticks if "." in tick]  # epochs are whole


@pytest.mark.parametrize(
    ("table", "panels", "label"),
    [
        ("secure/attention.csv", 1, "seconds"),
        ("secure/layers.csv", 2, "layer"),
        ("secure/breakdown-semi2k.csv", 4, "seconds"),
        ("secure/precision.csv", 1, "variance of the input"),
        ("secure/lowering.csv", 4, "exchanges"),
        ("cifar10-tiny/trade-off.csv", 2, "seconds of a private inference"),
        ("cifar10-40-epochs/trade-off-epochs.csv", 2, "epoch"),
    ],
)
def test_a_table_is_drawn_beside_itself(tmp_path, drawn, table, panels, label):
    copy = tmp_path / table
    copy.parent.mkdir()
    copy.write_bytes((RESULTS / table).read_bytes())
    assert draw_table(copy) == copy.with_suffix(".png")
    assert copy.with_suffix(".png").exists()
    assert len(drawn[0].axes) == panels
    assert drawn[0].axes[0].get_xlabel() == label


def test_a_table_without_a_chart_is_not_drawn(tmp_path):
    write_rows(tmp_path / "speed.csv", [{"what": "step", "images_per_s": 1}])
    assert draw_table(tmp_path / "speed.csv") is None


def test_a_run_is_drawn_from_its_log(tmp_path, drawn):
    log = (
        '{"epoch": 1, "train_loss": 2.0, "test_loss": 1.5, "test_top1": 0.25, "train_top1": 0.2, '
        '"alpha": [[[0.5], [1.0]], [[0.25], [0.75]]]}\n'
    )
    (tmp_path / "log.jsonl").write_text(log)
    draw_run(tmp_path)
    accuracy, loss = drawn[0].axes
    shown = {one.get_label(): one.get_ydata().tolist() for one in accuracy.lines}
    assert shown == {"test": [25.0], "train": [20.0]}
    assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("top-1 accuracy (%)", "loss")
    heat, means, movement = drawn[1].axes
    assert [text.get_text() for text in heat.texts] == ["0.50", "1.00", "0.25", "0.75"]
    assert means.lines[0].get_ydata().tolist() == [0.75, 0.5]
    assert [one.get_label() for one in movement.lines] == ["layer 0", "layer 1"]

"""The page as a file: whole, self-contained, and with a table for every chart."""

import json
import re
from html.parser import HTMLParser

import pytest

from mpcvit.experiments.published import published_trade_offs
from mpcvit.report.charts.chart import Point, Series, XYChart
from mpcvit.report.figures import write_figures
from mpcvit.report.collect import collect
from mpcvit.report.page import make_sections, render
from tests.command import invoke

VOID = {"meta", "link", "br", "input", "hr", "img"}


class Reader(HTMLParser):
    """Collects tags, identifiers and text, and notes tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.misfits = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.misfits.append(tag)


@pytest.fixture(scope="module")
def page(places):
    collected = collect(places)
    return render(collected, make_sections(collected, published_trade_offs()))


def test_the_page_is_well_formed_and_its_links_lead_somewhere(page):
    reader = Reader(page)
    assert not reader.misfits
    assert not reader.open
    assert len(reader.ids) == len(set(reader.ids))
    for _, attributes in reader.tags:
        for name in ("aria-labelledby", "aria-describedby", "data-table"):
            if name in attributes:
                assert attributes[name] in reader.ids
        if attributes.get("href", "").startswith("#"):
            assert attributes["href"][1:] in reader.ids


def test_the_page_asks_for_nothing_beyond_itself(page):
    addresses = set(re.findall(r"""(?:src|href)=["']([^"'#][^"']*)""", page))
    assert addresses == {"data:,"}
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page


def test_every_chart_has_its_data_its_place_and_its_rows(page):
    data = re.search(r'id="chart-data">(.*?)</script>', page, re.DOTALL)
    charts = json.loads(data[1])
    assert {chart["type"] for chart in charts} == {"xy", "bars", "grid"}
    ids = Reader(page).ids
    for chart in charts:
        assert chart["id"] in ids
        assert f"{chart['id']}-rows" in ids
    names = {series["name"] for chart in charts for series in chart.get("series", ())}
    assert "mpcvit-distilled, published" in names


def test_what_is_not_ours_is_escaped(page):
    assert "beware &lt;b&gt;" in page
    assert "beware <b>" not in page


def test_the_command_writes_page_and_figures(places, tmp_path):
    out = tmp_path / "report.html"
    run = places[0] / "mpcvit-0.3" / "seed-0" / "plain.json"
    done = invoke("report", run, "--out", out, "--figures", tmp_path / "figures", "--json")
    told = json.loads(done.stdout)
    assert told["report"] == str(out)
    assert "layer-seconds" in told["charts"]
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{id}.{form}" for id in told["charts"] for form in ("png", "svg")}
    assert "published" not in invoke("report", run, "--no-published", "--out", out).output
    assert "published</td>" not in out.read_text()
    refused = invoke("report", tmp_path / "figures", "--out", out, code=2).stderr
    assert "none of these places holds" in refused


def test_figures_are_the_same_when_drawn_again(places, tmp_path):
    collected = collect([places[0]])
    charts = [chart for section in make_sections(collected, []) for chart in section.charts][:1]
    first, again = (
        [path.read_bytes() for path in write_figures(tmp_path / name, charts)]
        for name in ("first", "again")
    )
    assert first == again
    assert b"<text" in first[1]  # text of an SVG stays text


def test_epochs_are_whole_numbers_in_figures_too(tmp_path):
    points = tuple(Point(x=epoch, y=10 * epoch, label="") for epoch in (1, 2))
    chart = XYChart(
        id="learning",
        title="",
        caption="",
        x_label="epoch",
        y_label="",
        series=(Series(name="one", points=points, origin="trained", hue=0),),
        whole_x=True,
    )
    _, svg = write_figures(tmp_path, [chart])
    ticks = re.findall(r">([\d.]+)</text>", svg.read_text())
    assert {"1", "2", "10", "20"} <= set(ticks)
    assert not [tick for tick in ticks if "." in tick]

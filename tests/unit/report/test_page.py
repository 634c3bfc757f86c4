"""The page as a file: whole, self-contained, and with a table for every chart."""

import json
import re
from html.parser import HTMLParser

import pytest

from mpcvit.experiments.published import published_trade_offs
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


def test_every_chart_has_its_drawing_and_its_rows(page, places):
    reader = Reader(page)
    collected = collect(places)
    sections = make_sections(collected, published_trade_offs())
    charts = [chart for section in sections for chart in section.charts]
    assert {type(chart).__name__ for chart in charts} == {"XYChart", "BarChart", "GridChart"}
    assert sum(tag == "svg" for tag, _ in reader.tags) == len(charts)
    for chart in charts:
        assert chart.id in reader.ids
        assert f"{chart.id}-rows" in reader.ids
    assert "mpcvit-distilled, published" in page


def test_what_is_not_ours_is_escaped(page):
    assert "beware &lt;b&gt;" in page
    assert "beware <b>" not in page


def test_the_papers_points_are_shown_unless_declined(places, tmp_path):
    """On a run of the paper's data; a table's own column of published seconds is another thing."""
    run, pages = places[0] / "softmax", {}
    for option in ("--published", "--no-published"):
        invoke("report", run, option, "--out", tmp_path / "report.html")
        pages[option] = (tmp_path / "report.html").read_text()
    assert ">softmax, published<" in pages["--published"]
    assert "softmax, modelled" in pages["--no-published"]
    assert "published" not in pages["--no-published"]


def test_the_command_writes_page_and_figures(places, tmp_path):
    out = tmp_path / "report.html"
    run = places[0] / "mpcvit-0.3" / "seed-0" / "plain.json"
    done = invoke("report", run, "--out", out, "--figures", tmp_path / "figures", "--json")
    told = json.loads(done.stdout)
    assert told["report"] == str(out)
    assert "layer-seconds" in told["charts"]
    names = {path.name for path in (tmp_path / "figures").iterdir()}
    assert names == {f"{id}.{form}" for id in told["charts"] for form in ("png", "svg")}
    refused = invoke("report", tmp_path / "figures", "--out", out, code=2).stderr
    assert "none of these places holds" in refused

"""The page as a file: whole, self-contained, and with a table for every chart."""

import json
import re
import sys
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
    assert all(address.startswith("data:") for address in addresses)
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page


def test_every_chart_has_its_drawing_and_its_rows(page, places):
    reader = Reader(page)
    collected = collect(places)
    sections = make_sections(collected, published_trade_offs())
    charts = [chart for section in sections for chart in section.charts]
    assert {type(chart).__name__ for chart in charts} == {"XYChart", "BarChart", "GridChart"}
    drawings = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(drawings) == 2 * len(charts)
    for chart in charts:
        assert chart.id in reader.ids
        assert f"{chart.id}-rows" in reader.ids
    assert "mpcvit-distilled, published" in page


def test_the_story_comes_first_and_warnings_last(page):
    order = [
        "Private predictions equal plaintext on 2 of 2 images; 2.5 times faster",
        *(f'id="{name}"' for name in ("the-pictures", "who-learnt-what")),
        *(f'id="{name}"' for name in ("accuracy-against-seconds", "where-the-seconds-go")),
        *(f'id="{name}"' for name in ("what-the-search-chose", "learning-curves", "warnings")),
        "beware &lt;b&gt;",
        'id="where-the-numbers-come-from"',
    ]
    places = [page.index(one) for one in order]
    assert places == sorted(places)
    assert page.count("beware") == 1


def test_pictures_stand_with_truth_answers_and_seconds(page):
    cards = re.findall(r'<li class="card">.*?</li>', page, re.DOTALL)
    first, lost = (" ".join(re.sub(r"<[^>]*>", " ", card).split()) for card in cards)
    assert first == "truth cat mpcvit-0.3, plain ✓ cat 2.5 s mpcvit-0.3, lowered ✗ dog 0.8 s"
    assert "data:image/png;base64," in cards[0]
    assert lost.startswith("no preview truth &lt;b&gt; mpcvit-0.3, plain not run")
    assert "<img" not in cards[1]


def test_without_the_package_that_draws_there_are_rows(places, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    collected = collect([places[0] / "mpcvit-0.3"])
    page = render(collected, make_sections(collected))
    assert page.count("Not drawn: drawing a figure needs matplotlib") == page.count("<figure")
    assert 'id="run-seconds-rows"' in page
    assert 'class="parties"' in page


def test_what_is_not_ours_is_escaped(page):
    assert "beware &lt;b&gt;" in page
    assert "beware <b>" not in page


def test_the_papers_points_are_shown_beside_runs_of_its_data(places, tmp_path):
    run = places[0] / "softmax"
    invoke("report", run, "--out", tmp_path / "report.html")
    assert ">softmax, published<" in (tmp_path / "report.html").read_text()
    collected = collect([run])
    alone = render(collected, make_sections(collected))
    assert "softmax, modelled" in alone
    assert "published" not in alone


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

"""The page in a real browser: it shows, tells, downloads, and complains of nothing."""

import csv

import pytest

from mpcvit.experiments.published import published_trade_offs
from mpcvit.report.collect import collect
from mpcvit.report.page import make_sections, write_page
from tests.chromium import browsing, find_chromium, wait_until

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")

TRADE_OFF = "document.getElementById('trade-off-cifar10')"


@pytest.fixture(scope="module")
def browser(places, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    collected = collect(places)
    write_page(folder / "report.html", collected, make_sections(collected, published_trade_offs()))
    with browsing(folder) as browser:
        browser.folder = folder
        yield browser


@pytest.fixture(params=[(1100, "light"), (390, "dark")], ids=["desk", "phone"])
def page(browser, request):
    width, scheme = request.param
    browser.show_as(width=width, scheme=scheme)
    browser.open(browser.folder / "report.html")
    return browser


def count(page, selector):
    return page.evaluate(f"document.querySelectorAll({selector!r}).length")


def test_every_chart_is_drawn_within_the_page_without_complaint(page):
    charts = count(page, "figure.chart")
    assert charts > 15
    assert page.evaluate(
        "[...document.querySelectorAll('figure.chart')]"
        ".every(one => one.querySelector('.plot svg').getBoundingClientRect().height > 60)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= page.width
    assert page.complaints == []


def test_a_value_is_found_where_a_reader_points(page):
    """The browser shows the title of what lies under the pointer."""
    mark = f"[...{TRADE_OFF}.querySelectorAll('use')].find(one => one.querySelector('title'))"
    page.evaluate(f"{mark}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    told = page.evaluate(
        f"""(() => {{
          const box = {mark}.getBoundingClientRect();
          const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
          return hit.querySelector('title')?.textContent;
        }})()"""
    )
    assert "top-1 accuracy" in told
    assert "seconds of a private inference" in told


def test_ink_can_be_read_on_light_and_dark_paper(page):
    """Text of a drawing has the page's own ink."""
    colours = page.evaluate(
        f"""[{TRADE_OFF}.querySelector('svg text'), document.body].map((one, place) =>
          getComputedStyle(one)[place ? 'color' : 'fill'])"""
    )
    assert colours[0] == colours[1]


def test_the_button_downloads_the_rows(page):
    file = page.folder / "heads.csv"
    file.unlink(missing_ok=True)
    page.evaluate("document.querySelector('[data-file=\"heads.csv\"]').click()")
    wait_until(file.exists)
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert rows[0] == {
        "network": "mpcvit-0.3",
        "layer": "0",
        "place": "head 0",
        "choice": "relu_softmax",
        "words": "relu_softmax",
    }
    assert len(rows) == 16
    assert "9 of 10 tokens fused_relu, 1 of 10 tokens activated" in [row["words"] for row in rows]

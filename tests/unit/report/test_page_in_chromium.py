"""The page in a real browser: it draws, switches, tells, downloads, and complains of nothing."""

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
        ".every(one => one.querySelector('.plot svg').childElementCount > 3)"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= page.width
    assert page.complaints == []


def test_labels_do_not_overlap(page):
    overlapping = page.evaluate(
        f"""(() => {{
          const boxes = [...{TRADE_OFF}.querySelectorAll('text.point')]
            .map(text => text.getBoundingClientRect());
          return boxes.filter((a, i) => boxes.some((b, j) => i < j && a.left < b.right - 1
            && b.left < a.right - 1 && a.top < b.bottom - 2 && b.top < a.bottom - 2)).length;
        }})()"""
    )
    assert overlapping == 0


def test_the_legend_switches_series_and_groups(page):
    marks = f"{TRADE_OFF}.querySelectorAll('.mark').length"
    before = page.evaluate(marks)
    buttons = f"[...{TRADE_OFF}.querySelectorAll('.legend button')]"
    press = f"{buttons}.find(one => one.textContent === 'all published').click()"
    page.evaluate(press)
    after = page.evaluate(marks)
    assert 0 < after < before
    pressed = f"{buttons}.filter(one => one.ariaPressed === 'false').length"
    assert page.evaluate(pressed) > 5
    page.evaluate(press)
    assert (page.evaluate(marks), page.evaluate(pressed)) == (before, 0)
    page.evaluate(f"{buttons}.forEach(one => one.ariaPressed === 'true' && one.click())")
    assert page.evaluate(f"{TRADE_OFF}.querySelector('.plot').textContent.includes('off')")
    assert page.complaints == []


def test_pointing_and_arrow_keys_tell_values(page):
    tip = f"{TRADE_OFF}.querySelector('.tip')"
    mark = f"{TRADE_OFF}.querySelector('.mark')"
    page.evaluate(f"{mark}.scrollIntoView({{behavior: 'instant', block: 'center'}})")
    x, y = page.evaluate(
        f"""(() => {{
          const box = {mark}.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
    )
    page.point_at(x, y)
    page.wait_for(f"!{tip}.hidden && {tip}.textContent.includes('top-1 accuracy')")
    page.evaluate(f"{TRADE_OFF}.querySelector('.plot').focus()")
    page.press("End")
    page.press("ArrowLeft")
    spoken = page.evaluate(f"{TRADE_OFF}.querySelector('.spoken').textContent")
    assert "published" in spoken
    assert "seconds of a private inference" in spoken
    page.press("Escape")
    assert page.evaluate(f"{tip}.hidden")
    assert page.complaints == []


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

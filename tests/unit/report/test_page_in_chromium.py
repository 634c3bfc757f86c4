"""The page in a real browser: it shows, tells, downloads, and complains of nothing."""

import csv

import pytest
from PIL import Image

from mpcvit.experiments.published import published_trade_offs
from mpcvit.report.collect import collect
from mpcvit.report.page import make_sections, write_page
from tests.chromium import browsing, find_chromium, wait_until
from tests.unit.report.conftest import COLOUR

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")

TRADE_OFF = "document.getElementById('trade-off-cifar10')"


@pytest.fixture(scope="module")
def browser(places, tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    collected = collect(places[:1])
    write_page(folder / "report.html", collected, make_sections(collected, published_trade_offs()))
    with browsing(folder) as browser:
        browser.folder = folder
        yield browser


@pytest.fixture(params=[(1280, "light"), (390, "dark")], ids=["desk", "phone"])
def page(browser, request):
    width, scheme = request.param
    browser.show_as(width=width, scheme=scheme)
    browser.open(browser.folder / "report.html")
    return browser


def count(page, selector):
    return page.evaluate(f"document.querySelectorAll({selector!r}).length")


def test_every_chart_is_drawn_within_the_page_without_complaint(page):
    charts = count(page, "figure.chart")
    assert charts > 10
    assert page.evaluate(
        "[...document.querySelectorAll('figure.chart')].every(one => "
        "[...one.querySelectorAll('.plot svg')].filter("
        "svg => svg.getBoundingClientRect().height > 60).length === 1)"  # that of this width
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= page.width
    assert page.complaints == []


def box_of(page, selector):
    """Where an element is on the page, as left, top, right and bottom."""
    return page.evaluate(
        f"""(() => {{
          const box = document.querySelector({selector!r}).getBoundingClientRect();
          return [box.left, box.top + scrollY, box.right, box.bottom + scrollY].map(Math.round);
        }})()"""
    )


def test_the_first_screen_shows_the_sentence_the_number_and_the_picture(page):
    picture = page.folder / "screen.png"
    page.screenshot(picture, whole=False)
    with Image.open(picture) as opened:
        screen = opened.convert("RGB")
    assert page.evaluate("document.querySelector('h1').innerText").startswith(
        "Private predictions equal plaintext on 2 of 2 images; 2.5 times faster"
    )
    boxes = [box_of(page, one) for one in ("h1", ".big", "img.picture")]
    tops = [box[1] for box in boxes]
    assert tops == sorted(tops)
    assert tops[-1] < screen.height  # a reader need not scroll to see that there are pictures
    for left, top, right, bottom in boxes:
        assert 0 <= left < right <= page.width
        painted = screen.crop((left, top, right, min(bottom, screen.height)))
        assert len(painted.getcolors(1 << 20)) > 1 or painted.getpixel((9, 9)) == COLOUR
    left, top, *_ = boxes[-1]
    assert screen.getpixel((left + 20, top + 20)) == COLOUR


def test_no_text_leaves_its_box(page):
    """Of the page itself, of cards, and of the drawing of who learnt what."""
    outside = page.evaluate(
        """[...document.querySelectorAll('.card, .lead, .party, .sent, h1, h2')].filter(
          (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""
    )
    assert outside == []


def test_parties_stand_side_by_side_or_below_each_other(page):
    first, second = (box_of(page, f".party:nth-child({place})") for place in (1, 3))
    arrow = box_of(page, ".sent i")
    if page.width == 1280:
        assert first[2] <= arrow[0] < arrow[2] <= second[0]
    else:
        assert first[3] <= arrow[1] < arrow[3] <= second[1]


def test_text_of_charts_can_be_read(page):
    """None is tiny, and on a phone as on a desk a chart is seen whole."""
    sizes = page.evaluate(
        """[...document.querySelectorAll('.plot svg')].filter((svg) => svg.clientWidth > 0)
          .flatMap((svg) => [...svg.querySelectorAll('text')].map((text) =>
            parseFloat(getComputedStyle(text).fontSize)
              * Math.hypot(text.getScreenCTM().a, text.getScreenCTM().b)))"""
    )
    assert len(sizes) > 100
    assert min(sizes) > 7.5
    assert (
        page.evaluate(
            """[...document.querySelectorAll('.plot')].filter((plot) =>
          plot.scrollWidth > plot.clientWidth + 1).map((plot) => plot.parentElement.id)"""
        )
        == []
    )


def test_it_prints_on_white_without_buttons(page):
    page.call("Emulation.setEmulatedMedia", media="print")
    hidden = ("nav", "button.csv", "details", ".skip")
    shown = [
        one for one in hidden if page.evaluate(f"document.querySelector({one!r}).checkVisibility()")
    ]
    assert shown == []
    ink = page.evaluate("getComputedStyle(document.body).color")
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ink, paper) == ("rgb(0, 0, 0)", "rgb(255, 255, 255)")
    row = "document.querySelector('#environment-rows tbody tr')"
    wide = "document.querySelector('#environment-rows').getBoundingClientRect().width"
    assert page.evaluate(wide) <= page.width  # a row is a paragraph, with the columns' names
    first = f"getComputedStyle({row}.cells[0], '::before').content"
    assert "what" in page.evaluate(first)
    page.show_as(width=680, scheme="light")  # A4 without its margins
    page.call("Emulation.setEmulatedMedia", media="print")
    tallest = (
        "Math.max(...[...document.querySelectorAll('figure:not([id^=trade-off])')].map("
        "one => one.getBoundingClientRect().height))"
    )
    heading_mm, pixels_per_mm = 25, 96 / 25.4
    assert page.evaluate(tallest) <= (297 - 2 * 15 - heading_mm) / 2 * pixels_per_mm
    assert len(page.call("Page.printToPDF")["data"]) > 1000


def test_a_value_is_found_where_a_reader_points(page):
    """The browser shows the title of what lies under the pointer."""
    shown = "one.querySelector('title') && one.getBoundingClientRect().width > 0"
    mark = f"[...{TRADE_OFF}.querySelectorAll('use')].find(one => {shown})"
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

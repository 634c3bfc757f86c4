"""The page in a real browser: pictures are dropped, classes are seen, strangers get nothing."""

import http.server
import json
import threading

import pytest

from mpcvit.web.desk import MOST_BYTES
from tests.chromium import browsing, find_chromium, wait_until

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chromium")
    with browsing(folder) as browser:
        browser.folder = folder
        browser.show_as(width=1000, scheme="light")
        yield browser


def shown(browser):
    return browser.evaluate(
        "[...document.querySelectorAll('#pictures li')].map((item) => [item.className, "
        "item.querySelector('.name').textContent, item.querySelector('.answer').textContent])"
    )


def test_two_pictures_are_dropped_and_two_classes_are_seen(browser, page, pictures):
    browser.open(page.address)
    browser.wait_for("document.getElementById('promise').textContent === 'Nothing leaves.'")
    browser.drop("#drop", [pictures["red"], pictures["blue"]])
    browser.wait_for("document.querySelectorAll('#pictures .done').length === 2")
    assert shown(browser) == [["done", "red.png", "red"], ["done", "blue.png", "blue"]]
    browser.wait_for(
        "[...document.querySelectorAll('#pictures img')].every((image) => image.naturalWidth === 8)"
    )
    for button, file in (("save-record", "record.json"), ("save-answers", "answers.csv")):
        (browser.folder / file).unlink(missing_ok=True)
        browser.evaluate(f"document.getElementById({button!r}).click()")
        wait_until((browser.folder / file).exists)
    assert json.loads((browser.folder / "record.json").read_text())["format"] == "mpcvit-record/1"
    answers = (browser.folder / "answers.csv").read_text()
    assert answers == 'picture,answer\n"red.png","red"\n"blue.png","blue"\n'
    assert browser.complaints == []


def test_a_broken_picture_gets_a_sentence(browser, page, pictures):
    browser.open(page.address)
    browser.drop("#drop", [pictures["broken"]])
    browser.wait_for("document.querySelector('#pictures .broken')")
    ((_, name, sentence),) = shown(browser)
    assert name == "broken.png"
    assert sentence.startswith("broken.png is not an image")


def test_a_file_that_is_too_large_gets_a_sentence(browser, page, tmp_path):
    large = tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    browser.open(page.address)
    browser.wait_for("document.getElementById('promise').textContent")
    browser.drop("#drop", [large])
    browser.wait_for("!document.getElementById('trouble').hidden")
    sentence = browser.evaluate("document.getElementById('trouble').textContent")
    assert sentence == "large.png: the file is larger than 32 MB"


def test_closing_the_tab_stops_nothing(browser, page, sessions, pictures):
    sessions.go.clear()
    browser.open(page.address)
    browser.drop("#drop", [pictures["red"]])
    browser.wait_for("document.querySelector('#pictures .running')")
    browser.wait_for(
        "document.querySelector('#progress p').textContent === 'Classifying: 0 of 1 have an answer'"
    )
    browser.open("about:blank#://")
    sessions.go.set()
    browser.open(page.address)
    browser.wait_for("document.querySelector('#pictures .done')")
    assert shown(browser) == [["done", "red.png", "red"]]
    # this tab has no copy of the picture, and shows no empty frame for it
    assert browser.evaluate("document.querySelector('#pictures li').firstChild.className") == "name"


def test_it_prints_answers_on_white_without_what_can_be_pressed(browser, page, pictures):
    browser.open(page.address)
    browser.drop("#drop", [pictures["red"]])
    browser.wait_for("document.querySelector('#pictures .done')")
    browser.call("Emulation.setEmulatedMedia", media="print")
    seen = [
        browser.evaluate(f"document.querySelector({one!r}).checkVisibility()")
        for one in ("#promise", "#pictures .done img", "#drop", "#buttons", "footer")
    ]
    style = "getComputedStyle(document.body)"
    colours = [browser.evaluate(f"{style}.{one}") for one in ("color", "backgroundColor")]
    browser.call("Emulation.setEmulatedMedia", media="")
    assert seen == [True, True, False, False, False]
    assert colours == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]


def test_it_fits_a_phone_and_shows_names_as_text(browser, page, pictures, tmp_path):
    hostile = tmp_path / "<img src=x onerror=alert(1)>.png"
    hostile.write_bytes(pictures["red"].read_bytes())
    browser.show_as(width=390, scheme="dark")
    browser.open(page.address)
    browser.drop("#drop", [hostile, pictures["broken"]])
    browser.wait_for("document.querySelectorAll('#pictures li').length === 2")
    browser.wait_for("document.querySelector('#pictures .done')")
    assert shown(browser)[0][1] == hostile.name
    assert browser.evaluate("document.documentElement.scrollWidth") <= browser.width
    browser.show_as(width=1000, scheme="light")


def test_the_page_says_when_its_command_has_ended(browser, page):
    browser.open(page.address)
    browser.wait_for("document.getElementById('promise').textContent")
    page.server.should_exit = True
    browser.wait_for("!document.getElementById('trouble').hidden")
    assert "has ended" in browser.evaluate("document.getElementById('trouble').textContent")


ATTACK = """
(async () => {
  const found = [];
  const urls = [TARGET, TARGET + "state", TARGET + "wrong/state", SECRET + "state", SECRET];
  for (const url of urls) {
    for (const mode of ["cors", "no-cors"]) {
      try {
        const answer = await fetch(url, { mode });
        found.push((await answer.text()).length);
      } catch { found.push("failed"); }
    }
    try {
      await fetch(url.replace(/state$/, "start"), { method: "POST", mode: "no-cors" });
      await fetch(SECRET + "pictures", { method: "POST", mode: "no-cors", body: "x" });
    } catch {}
  }
  const frame = document.createElement("iframe");
  frame.src = SECRET;
  const loaded = new Promise((resolve) => { frame.onload = resolve; });
  document.body.append(frame);
  await loaded;
  try { found.push(frame.contentDocument ? frame.contentDocument.body.innerText : "foreign"); }
  catch { found.push("foreign"); }
  return found;
})()
"""


def test_an_attackers_page_gets_nothing_even_with_the_address(browser, page, desk, sessions):
    """A page of another server, first without the token; and then, if it had leaked, with it."""

    class Attacker(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>attack</title><body>")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Attacker) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            browser.open(f"http://localhost:{other.server_port}/")
            target = f"http://127.0.0.1:{page.port}/"
            script = ATTACK.replace("TARGET", json.dumps(target))
            found = browser.evaluate(script.replace("SECRET", json.dumps(page.address)))
        finally:
            other.shutdown()
            thread.join()
    assert set(found) <= {"failed", 0, "foreign", ""}
    assert desk.show()["pictures"] == []
    assert sessions.sizes == []

"""`mpcvit app` as a user starts it: a browser, a client, a server, and a private session."""

import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from tests.chromium import browsing, find_chromium
from tests.hosts.service import Served, wait_until


@pytest.mark.long
@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
def test_two_pictures_are_dropped_and_their_classes_are_the_networks(site, tmp_path):
    temporary, notes = tmp_path / "temporary", tmp_path / "notes"
    temporary.mkdir()
    for index in range(2):
        Image.fromarray(site.pixels[index]).save(tmp_path / f"{index}.png")
    with Served(site, tmp_path / "served", clients=1) as served, notes.open("wb") as told:
        command = [
            *(sys.executable, "-m", "mpcvit", "app", "--server", served.address, "--no-open"),
            *("--tls", site.certs / "client", "--profile", "semi2k", "--insecure-first-party"),
        ]
        client = subprocess.Popen(command, stderr=told, env={**os.environ, "TMPDIR": temporary})
        try:
            wait_until(lambda: "Ctrl-C ends" in notes.read_text())
            address = re.search(r"http://127\.0\.0\.1:\d+/\S+/", notes.read_text())[0]
            with browsing(tmp_path) as browser:
                browser.show_as(width=1000, scheme="light")
                browser.open(address)
                browser.wait_for("document.getElementById('promise').textContent")
                promise = browser.evaluate("document.getElementById('promise').textContent")
                browser.drop("#drop", [tmp_path / "0.png", tmp_path / "1.png"])
                count = "document.querySelectorAll('#pictures .done').length"
                wait_until(lambda: browser.evaluate(count) == 2)
                answers = browser.evaluate(
                    "[...document.querySelectorAll('.answer')].map((one) => one.textContent)"
                )
            (visit,) = served.wait_for_visits(1)
        finally:
            client.send_signal(signal.SIGINT)
            code = client.wait(20)
    assert "Do not use real pictures. INSECURE dealer" in promise  # of this profile
    classes = [str(np.argmax(logits)) for logits in site.expected[:2]]
    assert [re.match(r"[^,]*?(\d+) ", answer)[1] for answer in answers] == classes
    assert (visit["images"], visit["ended"]) == (2, "done")  # in one session
    assert code == 0
    assert not list(temporary.iterdir())

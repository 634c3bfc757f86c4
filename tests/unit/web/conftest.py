"""A page whose pictures are classified by their colour, so that a test takes no private run."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest
from PIL import Image

from mpcvit.artifacts.record import BatchCost, Reveal
from mpcvit.secure.answers import ImageAnswer, KnownModel, RunResult
from mpcvit.web.desk import Desk
from mpcvit.web.server import Page
from tests.records import RECORD, stage

RED, BLUE = (250, 10, 10), (10, 10, 250)
MODEL = KnownModel(digest="d", classes=("red", "blue"), reveal=Reveal.CLASS)


class Sessions:
    """Stands for the other side: remembers its sessions, waits if told to, and may fail."""

    def __init__(self):
        self.sizes, self.go, self.error = [], threading.Event(), None
        self.go.set()

    def __call__(self, pictures, progress, answered):
        self.sizes.append(len(pictures))
        answers = []
        for place, picture in enumerate(pictures):
            progress("running", place, len(pictures))
            while not self.go.wait(0.01):
                progress("running", place, len(pictures))
            if self.error is not None and self.error(picture):
                raise self.error(picture)
            with Image.open(picture) as opened:
                red, _, blue = opened.convert("RGB").getpixel((0, 0))
            answer = ImageAnswer(
                model=MODEL, values=None, chosen=(int(blue > red),), trusted=True, close=False
            )
            answers.append(answer)
            answered(place, answer)
        batch = BatchCost(images=1, stages=(stage("head", 1),))
        record = replace(RECORD, batches=(batch,) * len(pictures))
        return RunResult(answers=tuple(answers), model=MODEL, record=record, resized=0)


@pytest.fixture
def sessions():
    return Sessions()


@pytest.fixture
def desk(sessions, tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    made = Desk(sessions, folder)
    yield made
    sessions.go.set()
    made.close()


@contextmanager
def serving(desk):
    page = Page(desk, "Nothing leaves.")
    thread = threading.Thread(target=page.run)
    thread.start()
    try:
        yield page
    finally:
        page.server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def page(desk):
    with serving(desk) as page:
        yield page


@pytest.fixture
def pictures(tmp_path):
    """Two pictures and one that is broken."""
    for name, colour in (("red", RED), ("blue", BLUE)):
        Image.new("RGB", (8, 8), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "red.png").read_bytes()[:40])
    return {name: tmp_path / f"{name}.png" for name in ("red", "blue", "broken")}

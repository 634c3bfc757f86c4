"""Progress in a file: plain lines that say what takes the time."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from mpcvit.report import live


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self):
        self.now = time.monotonic()

    def monotonic(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def written(monkeypatch, clock):
    """What goes to a file in place of a terminal, with a line every few milliseconds.

    Work takes no time, however busy the machine is.
    """
    text = io.StringIO()
    monkeypatch.setattr(live, "console", Console(file=text, get_time=clock.monotonic))
    monkeypatch.setattr(live, "LINE_EVERY_S", 0.02)
    return text


def wait_for(text, written):
    deadline = time.monotonic() + 10
    while text not in written.getvalue():
        assert time.monotonic() < deadline, written.getvalue()
        time.sleep(0.01)


def test_a_file_gets_lines_of_what_goes_on(written):
    with live.counting() as progress:
        progress("connecting", 0, 1)
        wait_for("connecting after 0 s\n", written)  # one step has no count
        progress("connecting", 1, 1)
        progress("compiling", 7, 7)
        wait_for("compiling 7 of 7 after 0 s\n", written)  # nothing else is known yet
        progress("running", 2, 30)
        wait_for("running 2 of 30 after 0 s\n", written)
    lines = written.getvalue().splitlines()
    assert lines[-1].startswith("running 2 of 30")  # what is done is no news
    assert not set("━\x1b\r") & set(written.getvalue())
    time.sleep(0.1)
    assert written.getvalue().splitlines() == lines  # nothing comes after the end


def test_pieces_of_work_in_a_row_share_a_clock(written, clock, monkeypatch):
    monkeypatch.setattr(live, "LINE_EVERY_S", 10.0)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=clock.monotonic))
    live.tell("note")
    for piece in ("one", "two"):
        with live.counting() as progress:
            progress(piece, 0, 1)
            clock.now += 4
    with live.counting() as progress:
        progress("three", 0, 1)
        clock.now += 4  # twelve since the note
        wait_for("three after 4 s\n", written)
    assert "one" not in written.getvalue()


def test_steps_and_their_parts_share_a_line(written):
    with live.WholeProgress(3) as display:
        display.begin("lower")
        display.count("calibrating", 5, 8)
        wait_for("lower 0 of 3 after 0 s, calibrating 5 of 8 after 0 s\n", written)


def test_work_of_unknown_length_has_no_end_in_sight(written):
    with live.counting() as progress:
        progress("choosing", 5, 0)
        wait_for("choosing 5 so far, after 0 s\n", written)
        progress("choosing", 5, 5)
        progress("counting", 1, 2)
        wait_for("\ncounting 1 of 2 after 0 s\n", written)


def test_a_terminal_gets_bars_alone(written, monkeypatch):
    monkeypatch.setattr(live, "console", Console(file=written, force_terminal=True))
    with live.counting() as progress:
        progress("running", 2, 30)
        time.sleep(0.1)
    assert "━" in written.getvalue()
    assert "2 of 30" not in written.getvalue()

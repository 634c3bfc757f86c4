"""The desk: sessions of all that waits, reasons for what has no answer, nothing on the disk."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mpcvit
from mpcvit.errors import UserError
from mpcvit.web import desk as module
from tests.chromium import wait_until


def states(desk):
    return [picture["state"] for picture in desk.show()["pictures"]]


def words(desk):
    return [picture["words"] for picture in desk.show()["pictures"]]


def drop(desk, pictures, *names):
    for name in names:
        desk.add(pictures[name].name, pictures[name].read_bytes())
    desk.start()


def wait(desk):
    wait_until(lambda: not {"waiting", "running"} & set(states(desk)))
    wait_until(lambda: desk.show()["phase"] is None)


def test_what_is_dropped_together_shares_a_session(desk, sessions, pictures):
    drop(desk, pictures, "red", "broken", "blue")
    wait(desk)
    assert words(desk)[::2] == ["red", "blue"]
    assert states(desk) == ["done", "broken", "done"]
    assert words(desk)[1].startswith("broken.png is not an image")
    assert sessions.sizes == [2]
    assert [one["seconds"] for one in desk.show()["pictures"]] == [2.0, None, 2.0]
    assert desk.record().images == 2


def test_what_comes_meanwhile_waits_for_the_next_session(desk, sessions, pictures):
    sessions.go.clear()
    drop(desk, pictures, "red")
    wait_until(lambda: desk.show()["phase"] is not None)
    drop(desk, pictures, "blue", "blue")
    assert states(desk) == ["running", "waiting", "waiting"]
    sessions.go.set()
    wait(desk)
    assert sessions.sizes == [1, 2]
    assert words(desk) == ["red", "blue", "blue"]


def test_a_session_that_fails_gives_the_reason_and_may_be_tried_again(desk, sessions, pictures):
    sessions.error = lambda picture: (
        UserError("nobody listens") if picture.name == "0001.png" else None
    )
    drop(desk, pictures, "red", "blue")
    wait(desk)
    assert words(desk) == ["red", "nobody listens"]  # an answer that was there stays
    assert states(desk) == ["done", "failed"]
    assert desk.record() is None
    sessions.error = None
    desk.start()
    wait(desk)
    assert words(desk) == ["red", "blue"]


def test_pictures_that_the_session_refuses_do_not_stop_the_others(desk, sessions, pictures):
    def refuse(picture):
        names = [picture, picture.with_name("0002.png")]
        lines = [f"{name} has 3 channels" for name in names]
        return UserError("\n".join(lines)) if picture.name == "0000.png" else None

    sessions.error = refuse
    drop(desk, pictures, "red", "blue", "blue")
    wait(desk)
    assert words(desk) == ["red.png has 3 channels", "blue", "blue.png has 3 channels"]
    assert states(desk) == ["broken", "done", "broken"]
    assert sessions.sizes == [3, 1]


def test_a_message_names_one_picture_alone(desk, sessions, pictures):
    """Files without a suffix, and a number that another one begins with."""

    def refuse_the_last(picture):
        last = max(picture.parent.iterdir(), key=lambda link: int(link.stem))
        return UserError(f"{last} is odd") if int(last.stem) == 10 else None

    sessions.error = refuse_the_last
    content = pictures["red"].read_bytes()
    for _ in range(11):
        desk.add("scan", content)
    desk.start()
    wait(desk)
    assert words(desk) == ["red"] * 10 + ["scan is odd"]


def test_an_unexpected_end_is_no_silence(desk, sessions, pictures):
    sessions.error = lambda picture: RuntimeError("surprise")
    drop(desk, pictures, "red")
    wait(desk)
    assert words(desk) == ["the session ended by RuntimeError: surprise"]


def test_pictures_are_never_on_the_disk_and_are_forgotten(desk, sessions, pictures, tmp_path):
    sessions.go.clear()
    drop(desk, pictures, "red")
    wait_until(lambda: desk.show()["phase"] is not None)
    (link,) = (tmp_path / "links").iterdir()
    assert link.is_symlink()
    assert os.readlink(link).startswith(f"/proc/{os.getpid()}/fd/")
    assert link.read_bytes() == pictures["red"].read_bytes()
    target = os.readlink(link)
    sessions.go.set()
    wait(desk)
    assert not list((tmp_path / "links").iterdir())
    assert not os.path.exists(target) or "picture" not in os.readlink(target)


def test_there_is_room_for_so_much(desk, pictures, monkeypatch):
    monkeypatch.setattr(module, "MOST_HELD_BYTES", 100)
    with pytest.raises(UserError, match="too many pictures"):
        desk.add("large.png", b"x" * 101)
    monkeypatch.setattr(module, "MOST_PICTURES", 1)
    desk.add("a.png", b"no picture")
    assert sum(picture.size for picture in desk._pictures) == 0
    with pytest.raises(UserError, match="too many pictures"):
        desk.add("b.png", b"no picture")


def test_pictures_that_come_together_share_the_room(desk, pictures, monkeypatch):
    """What is still being looked at takes its room already."""
    content, decode = pictures["red"].read_bytes(), module.decode_image

    def add_another(*arguments, **options):
        with pytest.raises(UserError, match="too many pictures"):
            desk.add("second.png", content)
        return decode(*arguments, **options)

    monkeypatch.setattr(module, "MOST_HELD_BYTES", len(content) + 1)
    monkeypatch.setattr(module, "decode_image", add_another)
    desk.add("first.png", content)
    assert states(desk) == ["waiting"]


def test_pictures_are_decoded_one_at_a_time(desk, pictures, monkeypatch):
    """Many large ones at once would take a machine's memory."""
    content, inside, most = pictures["red"].read_bytes(), [], []

    def decode(*_, **__):
        inside.append(True)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    monkeypatch.setattr(module, "decode_image", decode)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: desk.add("a.png", content), range(8)))
    assert most == [1] * 8


def test_the_page_has_words_for_every_step_of_a_session():
    """What the parties report is for people who know the protocol."""
    folder = Path(mpcvit.__file__).parent
    sources = [file.read_text() for file in (folder / "secure").rglob("*.py")]
    steps = {
        name
        for text in sources
        for name in re.findall(
            r'(?:_doing\(|report_progress\(self\._report, |Progressed\(what=|progress\()"([^"]+)"',
            " ".join(text.replace("(\n", "( ").split()).replace("( ", "("),
        )
    }
    assert {"compiling", "rehearsing", "ordering randomness", "running"} <= steps
    page = (folder / "web" / "assets" / "page.js").read_text()
    phases = page.partition("const PHASES = {")[2].partition("};")[0]
    known = {line.strip().split(": ")[0].strip('"') for line in phases.strip().splitlines()}
    assert steps == known


def test_closing_ends_a_session_that_runs(desk, sessions, pictures):
    sessions.go.clear()
    drop(desk, pictures, "red")
    wait_until(lambda: desk.show()["phase"] is not None)
    desk.close()
    assert not desk._worker.is_alive()


def test_a_picture_whose_name_is_too_long_for_a_disk(desk, sessions, pictures):
    """A name of a web page has no limit, and a session must not end by it."""
    desk.add("a." + 118 * "猫", pictures["red"].read_bytes())
    desk.add("b.png", pictures["blue"].read_bytes())
    desk.start()
    wait(desk)
    assert words(desk) == ["red", "blue"]


def test_a_folder_that_vanishes_ends_one_session(desk, sessions, pictures):
    folder, aside = desk._folder, desk._folder.with_name("aside")
    folder.rename(aside)
    drop(desk, pictures, "red")
    wait(desk)
    assert states(desk) == ["failed"]
    aside.rename(folder)
    desk.start()
    wait(desk)
    assert words(desk) == ["red"]

"""Whatever breaks one session, the others end well, and nothing is left over."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from mpcvit.artifacts.profile import NetworkLink
from mpcvit.secure.service.messages import SILENCE_S
from tests.hosts.service import (
    LONG_S,
    Client,
    ClientProcess,
    Dealing,
    Served,
    line_to,
    lines_to,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("nothing_left")
NOTICED_S = 10.0  # after a deadline


@pytest.fixture(scope="module")
def served(site, tmp_path_factory):
    """One server, which outlives all of these faults."""
    with Served(site, tmp_path_factory.mktemp("served"), clients=2) as served:
        yield served


def test_a_killed_client(site, served, nothing_left):
    """The log says so of its session alone, and what it held is given back."""
    before = len(served.visits())

    def new_visits():
        return served.visits()[before:]

    with (
        lines_to(served.address, 2) as (one, another),
        ClientProcess(site, one, nothing_left / "killed", images=3) as killed,
    ):
        other = Client(site, another, "other")
        killed.start().wait_until_running()
        other.wait_until_running()
        killed.kill()
        struck = time.monotonic()
        # the other session may end at the same moment
        wait_until(lambda: "client" in [visit["certificate"] for visit in new_visits()])
        assert time.monotonic() - struck < SILENCE_S, "its line broke, which nobody waits for"
        (visit,) = (visit for visit in new_visits() if visit["certificate"] == "client")
        assert visit["ended"].startswith("the client vanished after ")
        other.assert_right(site)
        wait_until(lambda: list(killed.temporary.iterdir()) == [])
        killed.temporary.rmdir()
    ended = {visit["ended"] for visit in served.wait_for_visits(before + 2)[before:]}
    assert ended == {visit["ended"], "done"}
    served.wait_until_idle()


@pytest.mark.long
def test_a_killed_attendant(site, served):
    before = len(served.visits())
    with lines_to(served.address, 2) as (one, another):
        broken = Client(site, one, images=3)
        broken.wait_until_running()
        (attendant,) = served.serving()
        other = Client(site, another, "other")
        other.wait_until_running()
        os.kill(attendant, signal.SIGKILL)
        expected = r"the model owner's process ended unexpectedly after .*: killed by SIGKILL"
        assert_matches(expected, broken.error(timeout_s=NOTICED_S))
        other.assert_right(site)
    visits = served.wait_for_visits(before + 2)[before:]
    assert_matches(expected, visits[0]["ended"])
    assert visits[1]["ended"] == "done"
    served.wait_until_idle()


@pytest.mark.long
def test_a_line_that_is_cut_for_3_s(site, served):
    """It is not worth a word."""
    before = len(served.visits())
    with line_to(served.address) as (address, line):
        client = Client(site, address)
        client.wait_until_running()
        line.send_signal(signal.SIGSTOP)
        time.sleep(3)
        assert client.steps[-1]["what"] == "running"
        line.send_signal(signal.SIGCONT)
        client.assert_right(site)
    assert served.wait_for_visits(before + 1)[-1]["ended"] == "done"


@pytest.mark.long
def test_a_line_that_is_cut_for_60_s(site, served):
    """Both ends notice by the silence, and say so while the line is still cut."""
    before = len(served.visits())
    with line_to(served.address) as (address, line), lines_to(served.address, 1) as (another,):
        broken = Client(site, address, images=3)
        broken.wait_until_running()
        other = Client(site, another, "other", images=2)
        other.wait_until_running()
        line.send_signal(signal.SIGSTOP)
        struck = time.monotonic()
        sentence = broken.error(timeout_s=SILENCE_S + NOTICED_S)
        assert f"nothing was heard of the server at {address} for 20 s" in sentence
        other.assert_right(site)
        visits = served.wait_for_visits(before + 2, SILENCE_S + NOTICED_S)[before:]
        ended = {visit["certificate"]: visit["ended"] for visit in visits}
        assert ended["client"].startswith("the client vanished after ")
        assert ended["other"] == "done"
        time.sleep(max(0.0, struck + 60 - time.monotonic()))
        line.send_signal(signal.SIGCONT)
    served.wait_until_idle()
    after = Client(site, served.address)
    after.assert_right(site)
    assert len(served.wait_for_visits(before + 3)) == before + 3


def test_an_answer_that_cannot_be_written_is_printed(site, served, tmp_path, nothing_left):
    disk = tmp_path / "disk"
    disk.mkdir()
    # a disk that the client alone sees, and that is gone with it; it is full once parties work
    mount = f"mount -t tmpfs -o size=2m tmpfs {disk}"
    fill = (
        f"(for i in $(seq 3000); do ls {nothing_left}/*/party.log && break; sleep 0.02; done; "
        f"head -c 3m /dev/zero > {disk}/other) > /dev/null 2>&1 &"
    )
    apart = ["unshare", "-m", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*apart, mount], capture_output=True).returncode
    ):
        pytest.skip("mounting a small disk is not allowed here")
    command = [
        *apart,
        f'{mount}; {fill} exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "mpcvit",
        "predict",
    ]
    command += [str(site.photo), "--profile", "semi2k", "--tls", str(site.certs / "client")]
    result = subprocess.run(
        [*command, "--server", served.address, "--out", str(disk / "record.json")],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(nothing_left)},
        timeout=120,
    )
    assert result.returncode == 2
    likeliest = site.expected[0].argmax()
    assert result.stdout.startswith(f"{site.photo}: class {likeliest} ")
    assert f"cannot write {disk / 'record.json'}: No space left on device" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.long
def test_a_server_that_dies_leaves_the_answers_that_were_there(site, tmp_path, nothing_left):
    """The client prints them and says how to go on, and then asks for the rest alone."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for index, pixels in enumerate(site.pixels[:3]):
        Image.fromarray(pixels).save(photos / f"{index}.png")
    lines = [f"{photos / f'{i}.png'}: class {site.expected[i].argmax()} " for i in range(3)]
    command = [sys.executable, "-m", "mpcvit", "predict", photos, "--profile", "semi2k"]
    command += ["--tls", site.certs / "client", "--server"]
    settings = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": {**os.environ, "TMPDIR": str(nothing_left), "XDG_STATE_HOME": str(tmp_path)},
    }
    killed = Served(site, tmp_path / "killed", clients=1).wait_until_open()
    try:
        with (
            line_to(killed.address, NetworkLink(round_trip_ms=10.0)) as (address, _),
            subprocess.Popen([*command, address], **settings) as client,
        ):
            assert client.stdout.readline().startswith(lines[0])  # with two more to come
            killed.kill()
            told = client.communicate(timeout=LONG_S)[1]
            assert client.returncode == 2
    finally:
        killed.kill()
    (kept,) = (tmp_path / "mpcvit" / "answers").iterdir()
    assert "broke off without a word" in told
    assert f"of 3 images have an answer, kept in {kept}; add --resume" in told
    known = int(re.search(r"(\d) of 3", told)[1])
    with Served(site, tmp_path / "again", clients=1) as again:
        result = subprocess.run([*command, again.address, "--resume"], timeout=LONG_S, **settings)
        (visit,) = again.wait_for_visits(1)
    assert result.returncode == 0
    assert [line[: len(lines[0])] for line in result.stdout.splitlines()[:3]] == lines
    assert visit["images"] == 3 - known < 3
    assert not kept.exists()


@pytest.mark.long
def test_a_killed_server_and_one_that_cannot_log(site, tmp_path):
    """The next one takes the same port at once, and serves although every log is on a full disk."""
    killed = Served(site, tmp_path / "killed", clients=1).wait_until_open()
    try:
        with line_to(killed.address) as (address, _):
            client = Client(site, address)
            client.wait_until_running()
            parties = killed.parties()
            killed.kill()
            sentence = client.error(timeout_s=NOTICED_S)
            assert sentence == f"the server at {address} broke off without a word"
        assert parties
        killed.assert_nothing_left()
    finally:
        killed.kill()
    full = Path("/dev/full")
    again = Served(
        site, tmp_path / "again", clients=1, listen=killed.address, stdout=full, stderr=full
    )
    try:
        again.wait_until_idle()
        for name in ("client", "other"):
            Client(site, again.address, name).assert_right(site)
        wait_until(lambda: again.status()["sessions done"] == 2)
        assert again.status()["log_errors"] >= 2
        again.process.terminate()
        # Python itself ends with 120 if standard output cannot be flushed
        assert again.process.wait(timeout=60) in (0, 120)
        again.assert_nothing_left()
    finally:
        again.kill()


@pytest.mark.long
def test_a_killed_dealer(site, tmp_path):
    """Who has its material ends well, who needs more says so, and a new dealer is found."""
    profile = tmp_path / "dealer.toml"
    profile.write_text(
        'protocol = "SEMI2K"\ndealer = "third-party"\n'
        "limits.connect_s = 8.0\nlimits.silence_s = 60.0\n"
    )
    with Dealing(site, tmp_path) as dealing:
        options = {"profile": profile, "dealer": dealing.address, "dealer_key": dealing.key}
        with (
            Served(site, tmp_path / "served", *dealing.options, profile=profile) as served,
            lines_to(served.address, 2) as (one, another),
        ):
            broken = Client(site, one, images=4, **options)
            other = Client(site, another, "other", **options)
            broken.wait_until_running()
            other.wait_until_running()
            dealing.kill()
            struck = time.monotonic()
            other.assert_right(site)
            assert "the dealer at" in broken.error()
            assert time.monotonic() - struck < 60 + NOTICED_S
            visits = served.wait_for_visits(2)
            ended = {visit["certificate"]: visit["ended"] for visit in visits}
            assert "dealer" in ended["client"]
            assert ended["other"] == "done"
            served.wait_until_idle()
            with Dealing(site, tmp_path, dealing.address):
                Client(site, served.address, **options).assert_right(site)


def assert_matches(pattern, sentence):
    assert re.search(pattern, sentence), sentence

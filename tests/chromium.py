"""Headless Chromium by its DevTools pipe: no driver and no package in between."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 20.0
# The browser reads commands from descriptor 3 and answers on 4.
_TAKE_PLACES = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(place), fcntl.F_DUPFD, 10) for place in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser")


def wait_until(is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Browser:
    """One page of a running browser: evaluate in it, press its keys, look at it."""

    def __init__(self, to_browser, from_browser):
        self._out, self._in = to_browser, from_browser
        self._ids, self._buffer, self._session = itertools.count(1), b"", None
        self.events, self.width, self.is_phone = [], 0, False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        return self._wait(lambda answer: answer.get("id") == number)

    def open(self, page):
        self.events.clear()
        url = page if "://" in str(page) else Path(page).absolute().as_uri()
        self.call("Page.navigate", url=url)
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def evaluate(self, script):
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script):
        wait_until(lambda: self.evaluate(f"Boolean({script})"))

    def press(self, key):
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def drop(self, selector, files):
        """Drop files of this machine onto the middle of an element."""
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        x, y = self.evaluate(f"(b => [b.x + b.width / 2, b.y + b.height / 2])({box})")
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)

    def point_at(self, x, y):
        """With a mouse, or on a phone with a finger."""
        if not self.is_phone:
            self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            return
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def show_as(self, *, width, scheme, height=900):
        self.width, self.is_phone = width, width < 600
        self.call("Emulation.setTouchEmulationEnabled", enabled=self.is_phone)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=self.is_phone,
        )
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def screenshot(self, path, *, whole=True):
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        Path(path).write_bytes(base64.b64decode(answer["data"]))

    @property
    def complaints(self):
        """Errors and warnings that the page logged or threw, and whatever it asked the network."""
        found = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"])
            elif event["method"] == "Runtime.consoleAPICalled":
                found.append(parameters["args"])
            elif event["method"] == "Log.entryAdded":
                found.append(parameters["entry"])
        return found

    def _wait(self, is_it):
        end = time.monotonic() + PATIENCE_S
        while True:
            while b"\0" in self._buffer:
                line, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(line)
                if "method" in message:
                    self.events.append(message)
                if is_it(message):
                    assert "error" not in message, message["error"]
                    return message.get("result", message)
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            assert ready, "Chromium did not answer"
            self._buffer += os.read(self._in, 1 << 20)


@contextmanager
def browsing(folder):
    """A browser whose profile and downloads stay in a folder."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    process = subprocess.Popen(
        [
            *(sys.executable, "-c", _TAKE_PLACES, str(theirs_in), str(theirs_out)),
            *(find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe"),
            f"--user-data-dir={folder / 'profile'}",
        ],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        browser = Browser(ours_out, ours_in)
        browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        yield browser
        browser._session = None
        browser.call("Browser.close")
    finally:
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for descriptor in (theirs_in, theirs_out, ours_in, ours_out):
            os.close(descriptor)

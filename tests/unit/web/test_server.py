"""Who is answered: the page's owner, and nobody else on the machine or in the browser."""

import contextlib
import http.client
import json
import socket

import pytest

from mpcvit.artifacts.record import RunRecord
from mpcvit.codec import load
from mpcvit.web import server
from tests.chromium import wait_until


def ask(page, path, method="GET", body=None, **headers):
    """Ask below the secret address; a path that begins with a slash is taken as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    secret = page.address.split("/", 3)[3]
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path if path.startswith("/") else f"/{secret}{path}", body, named)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer, content


def test_the_owner_gets_the_page_its_parts_and_the_record(page, desk, pictures, tmp_path):
    for path, kind in (("", "text/html"), ("page.css", "text/css"), ("page.js", "text/javascript")):
        answer, content = ask(page, path)
        assert (answer.status, answer.headers.get_content_type()) == (200, kind)
        assert content
    assert ask(page, "record.json")[0].status == 404
    body = pictures["red"].read_bytes()
    assert ask(page, "pictures", "POST", body, X_Name="a%20b.png")[0].status == 200
    assert ask(page, "start", "POST")[0].status == 204
    wait_until(lambda: desk.show()["records"])
    state = json.loads(ask(page, "state")[1])
    assert [(one["name"], one["words"]) for one in state["pictures"]] == [("a b.png", "red")]
    assert state["promise"] == "Nothing leaves."
    answer, content = ask(page, "record.json")
    assert "attachment" in answer.headers["content-disposition"]
    (tmp_path / "record.json").write_bytes(content)
    assert load(RunRecord, tmp_path / "record.json") == desk.record()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/state", {}),
        ("/page.js", {}),
        ("/wrong/state", {}),
        ("state", {"Host": "evil.example"}),
        ("state", {"Host": "evil.example:{port}"}),  # a name that was rebound to loopback
        ("state", {"Host": "127.0.0.1:1"}),
        ("state", {"Origin": "http://evil.example"}),
        ("state", {"Origin": "null"}),
        ("state", {"Sec_Fetch_Site": "cross-site"}),
        ("state", {"Sec_Fetch_Site": "same-site"}),  # another port of this machine
        ("", {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "iframe"}),
    ],
)
def test_nobody_else_gets_anything(page, path, headers):
    headers = {name: value.format(port=page.port) for name, value in headers.items()}
    answer, content = ask(page, path, **headers)
    assert (answer.status, content) == (404, b"")
    assert "access-control-allow-origin" not in answer.headers


def test_a_part_of_the_token_is_not_enough(page):
    secret = page.address.split("/")[3]
    for guess in (secret[:-1], secret + "x", secret.lower(), f"{secret}%00", ""):
        assert ask(page, f"/{guess}/state")[0].status == 404
    assert len(secret) >= 43  # 32 random bytes


def test_nobody_else_can_make_it_do_something(page, desk, pictures):
    body = pictures["red"].read_bytes()
    for headers in ({"Origin": "http://evil.example"}, {"Sec_Fetch_Site": "cross-site"}):
        assert ask(page, "pictures", "POST", body, **headers)[0].status == 404
        assert ask(page, "start", "POST", **headers)[0].status == 404
    assert desk.show()["pictures"] == []
    assert ask(page, "state", "POST")[0].status == 405


def test_what_is_too_large_is_refused_before_it_is_whole(page, desk, monkeypatch):
    monkeypatch.setattr(server, "MOST_BYTES", 1000)
    answer, content = ask(page, "pictures", "POST", b"x" * 1001)
    assert answer.status == 413
    assert "larger than" in json.loads(content)["sentence"]
    assert desk.show()["pictures"] == []


def test_the_browser_is_asked_to_trust_nothing_else(page):
    headers = ask(page, "")[0].headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["cache-control"], headers["referrer-policy"]) == ("no-store", "no-referrer")


def test_connections_that_say_nothing_keep_nobody_out(page):
    """Another user of the machine opens many; the owner's request and connection live on."""
    kept = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    state = f"/{page.address.split('/', 3)[3]}state"
    kept.request("GET", state)
    kept.getresponse().read()
    own = kept.sock
    with contextlib.ExitStack() as stack:
        for _ in range(2 * server._STRANGERS):
            address = ("127.0.0.1", page.port)
            stack.enter_context(socket.create_connection(address, timeout=20))
        assert ask(page, "state")[0].status == 200
        kept.request("GET", state)
        assert kept.getresponse().status == 200
        assert kept.sock is own  # and not a new one
    kept.close()


def test_only_loopback_listens(page):
    family = socket.AF_INET
    found = {one[4][0] for one in socket.getaddrinfo(socket.gethostname(), None, family)}
    for address in found - {"127.0.0.1"}:
        with pytest.raises(OSError, match=r"refused|timed out"):
            socket.create_connection((address, page.port), timeout=2)

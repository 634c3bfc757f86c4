"""A server's numbers: on this machine alone, and read back by name."""

import socket
import threading
import urllib.request

import pytest

from mpcvit.errors import UserError
from mpcvit.secure.parties.roles import free_addresses
from mpcvit.secure.service.metrics import ServerMetrics, read_status


@pytest.fixture
def metrics():
    numbers = ServerMetrics()
    yield numbers
    numbers.close()


def test_numbers_are_read_back_by_name(metrics):
    (address,) = free_addresses(1)
    waiting = 2
    metrics.follow("clients_waiting", "Clients in the queue", lambda: waiting)
    metrics.serve(address)
    metrics.sessions.labels("done").inc()
    metrics.sessions.labels("failed").inc(2)
    metrics.images.inc(7)
    metrics.log_errors.inc()
    found = read_status(address)
    assert found == {
        "sessions done": 1,
        "sessions failed": 2,
        "images": 7,
        "sent_bytes": 0,
        "received_bytes": 0,
        "log_errors": 1,
        "clients_waiting": 2,
    }
    waiting = 5
    assert read_status(address)["clients_waiting"] == 5


def test_prometheus_finds_its_text(metrics):
    (address,) = free_addresses(1)
    metrics.serve(address)
    metrics.images.inc(3)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    assert "# TYPE mpcvit_images_total counter" in text
    assert "mpcvit_images_total 3.0" in text


def test_two_servers_do_not_count_together(metrics):
    other = ServerMetrics()
    other.images.inc(3)
    (address,) = free_addresses(1)
    metrics.serve(address)
    assert read_status(address)["images"] == 0


@pytest.mark.parametrize("address", ["0.0.0.0:9464", "192.0.2.1:9464"])
def test_numbers_are_shown_on_this_machine_alone(metrics, address):
    with pytest.raises(UserError, match="on this machine alone"):
        metrics.serve(address)


def test_a_port_that_is_taken_is_named(metrics):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UserError, match=f"cannot show metrics at {address}.*--metrics"):
            metrics.serve(address)


def test_nobody_answers_after_the_end(metrics):
    (address,) = free_addresses(1)
    metrics.serve(address)
    threads = threading.active_count()
    metrics.close()
    assert threading.active_count() == threads - 1
    with pytest.raises(UserError, match=f"no server shows its numbers at {address}"):
        read_status(address)
    metrics.close()


def test_a_proxy_is_not_asked_for_this_machine(metrics, monkeypatch):
    (address, proxy) = free_addresses(2)
    metrics.serve(address)
    monkeypatch.setenv("http_proxy", f"http://{proxy}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert read_status(address)["images"] == 0


@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\nanother_x 1\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nmpcvit_im",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
def test_another_server_is_not_mistaken_for_ours(content):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(content)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(UserError, match=f"no server shows its numbers at {address}"):
            read_status(address)
        thread.join()

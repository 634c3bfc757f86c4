"""Hosts as network namespaces: clients behind address translation, and one reachable port.

client 192.168.1.2 -- router 10.77.0.11 --+
                                          +-- switch -- server 10.77.0.1
client 192.168.1.2 -- router 10.77.0.12 --+
"""

import os
import subprocess
import time

import pytest

from tests.hosts.service import ClientProcess, Served, make_site, wait_until

SERVER, PORT = "10.77.0.1", 9000
ADDRESS = f"{SERVER}:{PORT}"
WAN = {"round_trip_ms": 40.0, "bandwidth_bytes_per_s": 44e6}
PLAIN = {"insecure_first_party": True}  # the quickest profile; privacy is not what is tested here


def run(*command, check=True):
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Hosts:
    """Namespaces that end with the test; none of their traffic leaves them."""

    def __init__(self):
        self._prefix = f"mpcvit{os.getpid()}"
        self.names = ["switch", "server", "router0", "router1", "client0", "client1"]

    def within(self, host):
        return ("ip", "netns", "exec", self._full(host))

    def open(self):
        for name in self.names:
            run("ip", "netns", "add", self._full(name))
            self._ip(name, "link", "set", "lo", "up")
        self._ip("switch", "link", "add", "bridge", "type", "bridge")
        self._ip("switch", "link", "set", "bridge", "up")
        self._join("server", "wan", f"{SERVER}/24")
        for index in (0, 1):
            router, client = f"router{index}", f"client{index}"
            self._join(router, "wan", f"10.77.0.{11 + index}/24")
            self._pair(router, "lan", client, "lan")
            self._address(router, "lan", "192.168.1.1/24")
            self._address(client, "lan", "192.168.1.2/24")  # the same at both: none is routed
            self._ip(client, "route", "add", "default", "via", "192.168.1.1")
            run(*self.within(router), "sysctl", "-qw", "net.ipv4.ip_forward=1")
            self._rule(router, "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE")
            self._accept_only(router)
            self._accept_only(client)
        self._accept_only("server", "-p", "tcp", "--dport", str(PORT))

    def close(self):
        for name in self.names:
            run("ip", "netns", "del", self._full(name), check=False)

    def listening(self, host):
        """The TCP ports that are open in a namespace."""
        lines = run(*self.within(host), "ss", "-Hltn").stdout.splitlines()
        return [int(line.split()[3].rsplit(":", 1)[1]) for line in lines]

    def _full(self, name):
        return f"{self._prefix}{name}"

    def _ip(self, host, *arguments):
        run("ip", "-n", self._full(host), *arguments)

    def _rule(self, host, *arguments):
        run(*self.within(host), "iptables", *arguments)

    def _accept_only(self, host, *new):
        """Drop everything that begins elsewhere, except for `new`."""
        self._rule(host, "-A", "INPUT", "-i", "lo", "-j", "ACCEPT")
        known = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
        self._rule(host, "-A", "INPUT", *known, "-j", "ACCEPT")
        if new:
            self._rule(host, "-A", "INPUT", *new, "-j", "ACCEPT")
        self._rule(host, "-P", "INPUT", "DROP")

    def _pair(self, host, link, other, other_link):
        names = ("name", link, "type", "veth", "peer", "name", other_link)
        run("ip", "-n", self._full(host), "link", "add", *names, "netns", self._full(other))

    def _join(self, host, link, address):
        self._pair(host, link, "switch", host)
        self._ip("switch", "link", "set", host, "master", "bridge", "up")
        self._address(host, link, address)

    def _address(self, host, link, address):
        self._ip(host, "address", "add", address, "dev", link)
        self._ip(host, "link", "set", link, "up")


@pytest.fixture
def hosts():
    hosts = Hosts()
    try:
        hosts.open()
    except (OSError, subprocess.CalledProcessError) as error:
        hosts.close()
        pytest.skip(f"network namespaces are not allowed here: {error}")
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture(scope="module")
def far_site(tmp_path_factory):
    # clients that bring an emulated line dial it on their own host
    return make_site(tmp_path_factory.mktemp("far"), hosts=(SERVER, "127.0.0.1"))


@pytest.fixture
def served(hosts, far_site, tmp_path):
    with Served(
        far_site,
        tmp_path / "served",
        "--insecure-first-party",
        listen=ADDRESS,
        within=hosts.within("server"),
        metrics=False,
    ) as served:
        yield served


def predicting(hosts, site, folder, name, host, **options):
    return ClientProcess(
        site, ADDRESS, folder / f"{name}-{host}", name, within=hosts.within(host), **PLAIN | options
    )


def test_two_clients_behind_address_translation(hosts, served, far_site, tmp_path):
    """Both at once are right, a third one waits its turn, and one port is open in all."""
    with (
        predicting(hosts, far_site, tmp_path, "client", "client0", images=4) as one,
        predicting(hosts, far_site, tmp_path, "other", "client1", images=4) as other,
        predicting(hosts, far_site, tmp_path, "third", "client0") as third,
    ):
        third.wait_for("loaded")
        one.start()
        other.start()
        wait_until(lambda: len(served.serving()) == 2)
        third.start()
        assert third.wait_for("waiting")["what"] == "waiting, place 1 in the queue"
        assert {host: hosts.listening(host) for host in hosts.names} == {
            **{host: [] for host in hosts.names},
            "server": [PORT],
        }
        for client in (one, other, third):
            client.assert_right(far_site)
    visits = served.wait_for_visits(3)
    assert {visit["ended"] for visit in visits} == {"done"}
    seen = {visit["certificate"]: visit["peer"].split(":")[0] for visit in visits}
    assert seen == {"client": "10.77.0.11", "other": "10.77.0.12", "third": "10.77.0.11"}


@pytest.mark.long
def test_two_at_once_over_a_wan(hosts, served, far_site, tmp_path):
    """Such a run mostly waits, so that two of them share their waiting."""

    def time_of(clients):
        for client in clients:
            client.wait_for("loaded")
        began = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.assert_right(far_site)
        return time.monotonic() - began

    def both(folder):
        return [
            predicting(hosts, far_site, folder, name, host, images=3, network=WAN)
            for name, host in (("client", "client0"), ("other", "client1"))
        ]

    alone_s = 0.0
    for client in both(tmp_path / "alone"):
        with client:
            served.wait_until_idle()
            alone_s += time_of([client])
    served.wait_until_idle()
    one, other = both(tmp_path / "together")
    with one, other:
        together_s = time_of([one, other])
    print(f"one after the other {alone_s:.1f} s, at once {together_s:.1f} s")
    assert together_s <= 0.8 * alone_s

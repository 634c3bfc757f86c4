"""`mpcvit doctor`: every trouble gets a line of its own, and what to do."""

import json
import os
import socket
import ssl
import threading
from contextlib import contextmanager, suppress

import pytest

from mpcvit import doctor
from mpcvit.doctor import State
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.credentials import Credentials
from mpcvit.secure.parties.roles import free_addresses
from tests.command import invoke


@pytest.fixture
def no_spu(monkeypatch):
    """What takes seconds is looked at in one test alone."""
    monkeypatch.setattr(doctor, "_PRODUCT", "")


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certs") / "certs"
    make_certificates(folder, names=("server", "client", "dealer"))
    return folder


def test_a_machine_on_which_tests_run_is_fine():
    document = json.loads(invoke("doctor", "--json").stdout)
    assert document["problems"] == 0
    names = [check["name"] for check in document["checks"]]
    assert names[:6] == ["Python", "platform", "cores", "memory", "packages", "SPU"]
    assert {check["state"] for check in document["checks"]} <= {"fine", "note"}


def found(name, **places):
    (check,) = (check for check in doctor.examine(**places) if check.name == name)
    return check


@pytest.mark.usefixtures("no_spu")
class TestTroubles:
    def test_the_exit_code(self, monkeypatch):
        monkeypatch.setattr(doctor, "_PYTHONS", ((3, 9),))
        output = invoke("doctor", code=1).stdout
        assert output.splitlines()[0].startswith("problem  Python ")
        assert "make an environment with one of these" in output
        assert output.splitlines()[-1] == "1 problem"

    def test_platform(self, monkeypatch):
        monkeypatch.setattr(doctor, "_INSTRUCTIONS", ("aes", "amx_of_tomorrow"))
        assert "without amx_of_tomorrow" in found("platform").found
        monkeypatch.setattr(doctor.platform, "system", lambda: "Darwin")
        assert found("platform").state is State.PROBLEM
        assert [check.name for check in doctor.examine()] == ["Python", "platform"]

    def test_cores_memory_and_packages(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
        assert found("cores").state is State.NOTE
        for free, state in ((900_000_000, State.PROBLEM), (4_000_000_000, State.NOTE)):
            monkeypatch.setattr(doctor, "available_bytes", lambda free=free: free)
            assert found("memory").state is state
        monkeypatch.setattr(doctor, "_version", lambda name: "0.4.34" if name != "spu" else "0.9.4")
        assert found("packages").advice == "run pip install spu==0.9.5"
        monkeypatch.setattr(doctor, "_version", lambda name: "missing")
        assert "`mpcvit dealer serve` needs none of them" in found("packages").advice
        assert "SPU" not in [check.name for check in doctor.examine()]

    @pytest.mark.parametrize(
        ("program", "words"),
        [
            ("import os; os.kill(os.getpid(), 4)", "the CPU lacks instructions"),
            ("import no_such_module", "install mpcvit again"),
        ],
    )
    def test_spu(self, monkeypatch, program, words):
        monkeypatch.setattr(doctor, "_PRODUCT", program)
        check = found("SPU")
        assert check.state is State.PROBLEM
        assert words in check.advice

    def test_disks(self, monkeypatch, tmp_path):
        monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path / "not" / "yet"))
        assert found("cache").state is State.FINE
        assert list(tmp_path.iterdir()) == []
        usage = type("Usage", (), {"free": 5_000_000})
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage)
        assert found("cache").state is State.PROBLEM
        assert "5.0 MB free" in found("cache").found

    def test_a_folder_whose_name_is_too_long_for_sockets(self, monkeypatch, tmp_path):
        folder = tmp_path / ("long" * 30)
        folder.mkdir()
        monkeypatch.setattr(doctor.tempfile, "tempdir", str(folder))
        check = found("sockets in files")
        assert check.state is State.PROBLEM
        assert "too long" in check.found

    def test_ports(self, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError(1, "Operation not permitted")

        monkeypatch.setattr(doctor.socket, "create_server", refuse)
        assert "Operation not permitted" in found("ports").found

    def test_a_port_to_listen_on(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            check = found("listening", listen=address)
            assert (check.state, check.found) == (
                State.PROBLEM,
                f"{address}: Address already in use",
            )
            assert "choose another port" in check.advice
        assert found("listening", listen=free_addresses(1)[0]).state is State.FINE
        foreign = found("listening", listen="192.0.2.1:9000")  # of no machine
        assert "name an address of this machine" in foreign.advice


@pytest.mark.usefixtures("no_spu")
class TestCertificates:
    @pytest.mark.parametrize("role", ["server", "client", "dealer"])
    def test_good_ones(self, certs, role):
        check = found("certificate", tls=certs / role)
        assert check.state is State.FINE, check
        assert f"of a {role}, until 20" in check.found

    def test_bad_ones(self, certs, tmp_path):
        make_certificates(tmp_path / "other", names=("server", "client"), days=5)
        client = tmp_path / "other" / "client"
        assert "4 days are left" in found("certificate", tls=client).found
        (client / "key.pem").chmod(0o640)
        check = found("certificate", tls=client)
        assert check.state is State.PROBLEM
        assert "other users can read" in check.found
        (client / "key.pem").write_bytes((certs / "client" / "key.pem").read_bytes())
        assert "cannot be used with cert.pem" in found("certificate", tls=client).found
        assert "there is no" in found("certificate", tls=tmp_path).found
        check = found("certificate", tls=tmp_path / "absent")
        assert (check.state, check.found[:18]) == (State.PROBLEM, "there is no folder")
        assert check.advice == "name this host's folder of those that mpcvit certs made"


@contextmanager
def listening(context):
    """Give the address of a port that shakes hands, if it has a context, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            line, _ = server.accept()
            with line:
                if context is None:
                    line.sendall(b"220 mail.example.org\r\n")
                    return
                with suppress(ssl.SSLError, OSError):  # the other side says why
                    context.wrap_socket(line, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.usefixtures("no_spu")
class TestAddresses:
    def test_a_server_and_a_dealer_that_answer(self, certs):
        context = Credentials(folder=certs / "server").listening_context()
        with listening(context) as address:
            check = found("server", server=address, tls=certs / "client")
        assert check.state is State.FINE
        assert "answers as server" in check.found
        context = Credentials(folder=certs / "dealer").listening_context()
        with listening(context) as address:
            assert found("dealer", dealer=address, tls=certs / "client").state is State.FINE

    def test_somebody_else(self, certs, tmp_path):
        with listening(None) as address:
            assert "no TLS" in found("server", server=address, tls=certs / "client").found
        with listening(None) as address:
            check = found("server", server=address)
            assert check.advice == "a good --tls shows who it is"
        make_certificates(tmp_path / "other", names=("server",))
        context = Credentials(folder=tmp_path / "other" / "server").listening_context()
        with listening(context) as address:
            check = found("server", server=address, tls=certs / "client")
        assert "its certificate is refused" in check.found
        assert "another authority signed it" in check.advice
        with listening(context) as address:  # bad certificates are one problem, and no second one
            check = found("server", server=address, tls=tmp_path)
        assert (check.state, check.found) == (State.NOTE, f"{address}: somebody listens")
        allowed = certs / "client" / "allowed.txt"
        listed = allowed.read_text()
        allowed.write_text("")
        context = Credentials(folder=certs / "server").listening_context()
        try:
            with listening(context) as address:
                check = found("server", server=address, tls=certs / "client")
        finally:
            allowed.write_text(listed)
        assert "is not on the list" in check.found

    def test_nobody(self):
        (address,) = free_addresses(1)
        check = found("dealer", dealer=address)
        assert (check.state, check.found) == (State.PROBLEM, f"{address}: nobody listens")
        assert "start `mpcvit dealer serve`" in check.advice
        assert "is not an address" in found("server", server="9000").found

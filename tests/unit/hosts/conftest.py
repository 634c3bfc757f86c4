"""Certificates that several tests share; each is made once."""

import pytest

from mpcvit.hosts.certificates import make_certificates


@pytest.fixture(scope="session")
def certs(tmp_path_factory):
    """Return a folder with a server, the clients "client" and "second", and a dealer."""
    out = tmp_path_factory.mktemp("certs")
    make_certificates(out, names=("server", "client", "second", "dealer"))
    return out


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """Return a folder of the same names by other authorities."""
    out = tmp_path_factory.mktemp("foreign")
    make_certificates(out, names=("server", "client", "dealer"))
    return out

"""A site for all tests of the service, and proof that clients leave nothing over."""

import tempfile

import pytest

from tests.hosts.service import make_site, wait_until
from tests.two_party.processes import working_below


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    return make_site(tmp_path_factory.mktemp("site"))


@pytest.fixture
def nothing_left(monkeypatch, tmp_path):
    """After the test no client's process and no file of one is left."""
    folder = tmp_path / "clients"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    wait_until(lambda: not working_below(folder))
    wait_until(lambda: not list(folder.iterdir()))

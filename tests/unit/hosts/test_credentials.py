"""Credentials: what a host shows and trusts, read again when the files change."""

import hashlib
import shutil
import ssl
from datetime import datetime, timedelta, timezone

import pytest

from mpcvit.errors import UserError
from mpcvit.hosts.certificates import make_certificates
from mpcvit.hosts.credentials import (
    Credentials,
    ListeningContext,
    load_credentials,
    read_certificate,
)
from mpcvit.hosts.peer import CLIENT, DEALER, SERVER
from tests.unit.hosts.shaking import shake

FILES = ("key.pem", "cert.pem", "ca.pem")


@pytest.fixture
def folder(certs, tmp_path):
    """Return a copy of the server's folder that a test may change."""
    return shutil.copytree(certs / "server", tmp_path / "server")


class Listening:
    """A context whose warnings are kept."""

    def __init__(self, folder):
        self.warnings = []
        self.context = ListeningContext(Credentials(folder=folder), self.warnings.append)

    def shown(self, client):
        """Return the fingerprint that the client of a folder sees."""
        dialling = Credentials(folder=client).dialling_context()
        return shake(self.context.latest(), dialling)[1].fingerprint


def fingerprint(folder):
    content = ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())
    return hashlib.sha256(content).hexdigest()


def put(source, target):
    for name in FILES:
        shutil.copy(source / name, target / name)


def test_each_role_loads_its_own_folder(certs):
    for role in (SERVER, CLIENT, DEALER):
        assert load_credentials(certs / role, role).folder == certs / role
    with pytest.raises(UserError, match="that of a 'client', not of a 'server'"):
        load_credentials(certs / "client", SERVER)
    load_credentials(certs / "second", CLIENT)  # whatever its name


def test_contexts_ask_for_certificates_and_the_newest_tls(certs):
    credentials = load_credentials(certs / "server", SERVER)
    for context in (
        credentials.listening_context(),
        credentials.dialling_context(),
        credentials.dealer_context(),
    ):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert len(context.get_ca_certs()) == 1  # no public authority is trusted
    assert credentials.dialling_context().check_hostname
    assert credentials.dealer_context().check_hostname


def test_the_dealers_authority_is_asked_for_where_it_is_missing(folder):
    (folder / "dealer-ca.pem").unlink()
    with pytest.raises(UserError, match=r"there is no .*dealer-ca\.pem; `mpcvit certs"):
        Credentials(folder=folder).dealer_context()


def test_damaged_folders_are_explained(foreign, folder):
    def refuses(match):
        with pytest.raises(UserError, match=match):
            load_credentials(folder, SERVER)

    key = (folder / "key.pem").read_bytes()
    shutil.copy(foreign / "server" / "key.pem", folder / "key.pem")
    refuses(r"key\.pem cannot be used")
    (folder / "key.pem").write_bytes(key)
    shutil.copy(foreign / "server" / "ca.pem", folder / "ca.pem")
    refuses("did not sign it")
    (folder / "ca.pem").write_bytes(b"garbage")
    refuses("is not a certificate")
    (folder / "ca.pem").unlink()
    refuses(r"there is no .*ca\.pem")


def test_a_folder_without_a_list_is_refused(folder):
    (folder / "allowed.txt").unlink()
    with pytest.raises(UserError, match="list of allowed peers"):
        load_credentials(folder, SERVER)


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(folder):
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (folder / "key.pem").write_bytes(locked)
    with pytest.raises(UserError, match=r"key\.pem cannot be used"):
        load_credentials(folder, SERVER)


def test_the_clock_decides(tmp_path):
    now = datetime.now(timezone.utc)
    make_certificates(tmp_path / "past", days=8, now=now - timedelta(days=9))
    with pytest.raises(UserError, match="expired on 20"):
        load_credentials(tmp_path / "past" / "client", CLIENT)
    make_certificates(tmp_path / "future", now=now + timedelta(days=2))
    with pytest.raises(UserError, match="valid only from 20"):
        load_credentials(tmp_path / "future" / "client", CLIENT)


def test_changed_files_are_loaded_and_unchanged_ones_are_not(certs, foreign, folder):
    listening = Listening(folder)
    assert listening.shown(certs / "client") == fingerprint(certs / "server")
    context = listening.context.current
    listening.context.refresh()
    assert listening.context.current is context
    put(foreign / "server", folder)
    assert listening.shown(foreign / "client") == fingerprint(foreign / "server")
    assert listening.warnings == ["certificates were reloaded"]
    with pytest.raises(ssl.SSLError):
        listening.shown(certs / "client")  # the former authority is not trusted any more


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, content) for name in FILES for content in (b"", b"garbage", None)),
        ("key.pem", "foreign"),
        ("cert.pem", "foreign"),
    ],
)
def test_broken_files_leave_the_former_ones_in_place(certs, foreign, folder, name, content):
    listening = Listening(folder)
    if content is None:
        (folder / name).unlink()
    elif content == "foreign":
        shutil.copy(foreign / "server" / name, folder / name)
    else:
        (folder / name).write_bytes(content)
    assert listening.shown(certs / "client") == fingerprint(certs / "server")
    (warning,) = listening.warnings
    assert warning.startswith("changed certificates cannot be used, the former ones stay")
    listening.context.refresh()
    assert len(listening.warnings) == 1  # once for each change
    put(certs / "server", folder)
    assert listening.shown(certs / "client") == fingerprint(certs / "server")
    assert listening.warnings[1:] == ["certificates were reloaded"]


@pytest.mark.parametrize(("days", "warns"), [(13, True), (16, False)])
def test_a_warning_comes_two_weeks_before_the_end(tmp_path, days, warns):
    make_certificates(tmp_path, days=days)
    listening = Listening(tmp_path / "server")
    for _ in range(3):  # not more than once a day
        listening.context.refresh()
    end = read_certificate(tmp_path / "server" / "cert.pem").not_valid_after_utc
    assert listening.context.expires == end
    expected = f"{tmp_path / 'server' / 'cert.pem'} expires on {end:%Y-%m-%d}"
    assert listening.warnings == ([expected] if warns else [])
    listening.context._warned_on = "2001-01-01"
    listening.context.refresh()
    assert len(listening.warnings) == 2 * warns


def test_a_renewed_certificate_ends_the_warnings(tmp_path):
    make_certificates(tmp_path / "old", days=3)
    make_certificates(tmp_path / "new", days=300)
    listening = Listening(tmp_path / "old" / "server")
    assert len(listening.warnings) == 1
    put(tmp_path / "new" / "server", tmp_path / "old" / "server")
    listening.context._warned_on = ""
    listening.context.refresh()
    assert listening.warnings[1:] == ["certificates were reloaded"]

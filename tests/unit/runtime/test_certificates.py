"""Certificates: whole or absent, private, and nobody's secret in another's folder."""

import ssl
import stat
from datetime import datetime, timedelta, timezone

import pytest
from mpcvit.runtime.certificates import make_certificates, read_certificate, roles_named
from mpcvit.runtime.tls import load_credentials

from mpcvit.errors import UserError
from mpcvit.runtime.roles import Role


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_each_party_gets_its_own_key_and_the_authority_alone(tmp_path):
    out = tmp_path / "certs"
    issued = make_certificates(out, hosts=["model.example.org", "192.0.2.1"])
    files = content(out)
    assert set(files) == {
        *("ca/key.pem", "ca/ca.pem", "ca/README.txt"),
        *("server/key.pem", "server/cert.pem", "server/ca.pem"),
        *("client/key.pem", "client/cert.pem", "client/ca.pem"),
    }
    assert files["server/ca.pem"] == files["client/ca.pem"] == files["ca/ca.pem"]
    keys = [files[f"{name}/key.pem"] for name in ("ca", "server", "client")]
    assert len(set(keys)) == 3
    for path in out.rglob("key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "offline" in files["ca/README.txt"].decode()
    assert set(issued.folders) == set(issued.fingerprints) == {"server", "client"}
    assert list(tmp_path.iterdir()) == [out]  # nothing aside


def test_they_are_accepted_by_their_role_alone(tmp_path):
    make_certificates(tmp_path)
    load_credentials(tmp_path / "server", Role.MODEL_OWNER)
    load_credentials(tmp_path / "client", Role.DATA_OWNER)
    with pytest.raises(UserError, match="that of 'client', not of 'server'"):
        load_credentials(tmp_path / "client", Role.MODEL_OWNER)


def test_the_clock_decides(tmp_path):
    past = datetime.now(timezone.utc) - timedelta(days=9)
    make_certificates(tmp_path / "past", days=8, now=past)
    with pytest.raises(UserError, match="expired on 20"):
        load_credentials(tmp_path / "past" / "client", Role.DATA_OWNER)
    make_certificates(tmp_path / "future", now=datetime.now(timezone.utc) + timedelta(days=2))
    with pytest.raises(UserError, match="valid only from 20"):
        load_credentials(tmp_path / "future" / "client", Role.DATA_OWNER)


def test_nothing_is_overwritten_unasked(tmp_path):
    out = tmp_path / "certs"
    make_certificates(out)
    before = content(out)
    with pytest.raises(UserError, match="already there"):
        make_certificates(out)
    assert content(out) == before
    make_certificates(out, fresh=True)
    after = content(out)
    assert set(after) == set(before)
    assert not set(after.values()) & (set(before.values()) - {before["ca/README.txt"]})
    assert list(tmp_path.iterdir()) == [out]


def test_a_missing_party_is_added_by_the_same_authority(tmp_path):
    make_certificates(tmp_path, roles=roles_named("server"))
    assert not (tmp_path / "client").exists()
    before = content(tmp_path)
    make_certificates(tmp_path, roles=roles_named("client"), days=9999)
    assert before.items() <= content(tmp_path).items()
    load_credentials(tmp_path / "client", Role.DATA_OWNER)
    authority = read_certificate(tmp_path / "ca" / "ca.pem")
    certificate = read_certificate(tmp_path / "client" / "cert.pem")
    assert certificate.not_valid_after_utc == authority.not_valid_after_utc


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match="there is no party 'teacher'"):
        roles_named("server,teacher")
    with pytest.raises(UserError, match="'a b' is neither a host name"):
        make_certificates(tmp_path / "certs", hosts=["a b"])
    with pytest.raises(UserError, match="a day or more"):
        make_certificates(tmp_path / "certs", days=0)
    assert not (tmp_path / "certs").exists()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds other things, such as thesis\.txt"):
        make_certificates(tmp_path, fresh=True)


def test_damaged_folders_are_explained(tmp_path):
    make_certificates(tmp_path)
    make_certificates(tmp_path / "other")
    client = tmp_path / "client"
    key = (client / "key.pem").read_bytes()
    (client / "key.pem").write_bytes((tmp_path / "other" / "client" / "key.pem").read_bytes())
    with pytest.raises(UserError, match=r"key\.pem cannot be used"):
        load_credentials(client, Role.DATA_OWNER)
    (client / "key.pem").write_bytes(key)
    (client / "ca.pem").write_bytes((tmp_path / "other" / "ca" / "ca.pem").read_bytes())
    with pytest.raises(UserError, match="did not sign it"):
        load_credentials(client, Role.DATA_OWNER)
    (client / "ca.pem").write_bytes(b"garbage")
    with pytest.raises(UserError, match="is not a certificate"):
        load_credentials(client, Role.DATA_OWNER)
    (client / "ca.pem").unlink()
    with pytest.raises(UserError, match=r"there is no .*ca\.pem"):
        load_credentials(client, Role.DATA_OWNER)


def test_contexts_ask_for_certificates_and_the_newest_tls(tmp_path):
    make_certificates(tmp_path)
    credentials = load_credentials(tmp_path / "server", Role.MODEL_OWNER)
    for context in (credentials.listening_context(), credentials.dialling_context()):
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3
        assert len(context.get_ca_certs()) == 1  # no public authority is trusted
    assert credentials.dialling_context().check_hostname

"""Certificates: whole or absent, private, and nobody's secret in another's folder."""

import json
import ssl
import stat
from datetime import datetime, timedelta, timezone

import pytest
from typer.testing import CliRunner

from mpcvit.cli import app
from mpcvit.errors import UserError
from mpcvit.hosts.certificates import make_certificates, names_listed, revoke_client
from mpcvit.hosts.credentials import Credentials, load_credentials, read_certificate
from mpcvit.hosts.peer import CLIENT, DEALER, SERVER, read_allowed
from tests.unit.hosts.shaking import shake


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def listed(folder):
    """Return the names on the list of a host."""
    return sorted(read_allowed(folder / "allowed.txt").values())


def test_each_host_gets_its_own_key_and_the_authority_alone(tmp_path):
    out = tmp_path / "certs"
    issued = make_certificates(out, hosts=["model.example.org", "192.0.2.1"])
    files = content(out)
    assert set(files) == {
        *("ca/key.pem", "ca/ca.pem", "ca/README.txt"),
        *("server/key.pem", "server/cert.pem", "server/ca.pem", "server/allowed.txt"),
        *("client/key.pem", "client/cert.pem", "client/ca.pem", "client/allowed.txt"),
    }
    assert files["server/ca.pem"] == files["client/ca.pem"] == files["ca/ca.pem"]
    keys = [files[f"{name}/key.pem"] for name in ("ca", "server", "client")]
    assert len(set(keys)) == 3
    for path in out.rglob("key.pem"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert "offline" in files["ca/README.txt"].decode()
    assert set(issued.folders) == set(issued.fingerprints) == {"server", "client"}
    assert read_allowed(out / "server/allowed.txt") == {issued.fingerprints["client"]: "client"}
    assert read_allowed(out / "client/allowed.txt") == {issued.fingerprints["server"]: "server"}
    assert list(tmp_path.iterdir()) == [out]  # nothing aside


def contexts(out, listening, dialling):
    return (
        Credentials(folder=out / listening).listening_context(),
        Credentials(folder=out / dialling).dialling_context(),
    )


def test_server_and_clients_know_each_other_by_fingerprint(certs):
    for name in ("client", "second"):
        client, server = shake(*contexts(certs, "server", name))
        assert (client.role, client.name) == (CLIENT, name)
        assert (server.role, server.name) == (SERVER, "server")
        assert read_allowed(certs / "server/allowed.txt")[client.fingerprint] == name
        assert read_allowed(certs / name / "allowed.txt")[server.fingerprint] == "server"


def test_the_dealer_cannot_stand_in_the_line_of_the_parties(certs):
    """Not as a client, nor as the server: neither trusts the authority that signed it."""
    dealer = Credentials(folder=certs / "dealer")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(Credentials(folder=certs / "server").listening_context(), dealer.dialling_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(dealer.listening_context(), Credentials(folder=certs / "client").dialling_context())
    ours = read_certificate(certs / "ca" / "ca.pem")
    theirs = read_certificate(certs / "dealer-ca" / "ca.pem")
    assert ours.public_key() != theirs.public_key()
    assert "dealer" not in {*listed(certs / "server"), *listed(certs / "client")}


def test_the_parties_reach_the_dealer_and_nobody_else_is_one(certs, foreign):
    listening = Credentials(folder=certs / "dealer").listening_context()
    for role in (SERVER, CLIENT):
        party, dealer = shake(listening, Credentials(folder=certs / role).dealer_context())
        assert (party.role, dealer.role) == (role, DEALER)
    asked = Credentials(folder=certs / "client").dealer_context()
    with pytest.raises(ssl.SSLCertVerificationError):  # the server, in the dealer's place
        shake(Credentials(folder=certs / "server").listening_context(), asked)
    with pytest.raises(ssl.SSLError):
        shake(listening, Credentials(folder=foreign / "client").dealer_context())


def test_another_authority_is_refused_at_both_ends(certs, foreign):
    ours, theirs = Credentials(folder=certs / "server"), Credentials(folder=foreign / "client")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(ours.listening_context(), theirs.dialling_context())
    trusting = theirs.dialling_context()
    trusting.load_verify_locations(ours.authority)
    with pytest.raises(ssl.SSLError):
        shake(ours.listening_context(), trusting)


def test_a_client_cannot_stand_in_for_the_server(certs):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(*contexts(certs, "client", "second"))


def test_the_name_of_the_host_is_checked(tmp_path):
    make_certificates(tmp_path, hosts=["model.example.org"])
    shake(*contexts(tmp_path, "server", "client"), host="model.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake(*contexts(tmp_path, "server", "client"), host="localhost")


def test_an_expired_certificate_is_refused_at_both_ends(tmp_path):
    """Signed by the very authority that the other end trusts, but too long ago."""
    past = datetime.now(timezone.utc) - timedelta(days=9)
    make_certificates(tmp_path, names=("server", "client"), days=30)
    make_certificates(tmp_path, names=("late",), days=8, now=past)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        shake(*contexts(tmp_path, "server", "late"))


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


def test_a_missing_host_is_added_by_the_same_authority(tmp_path):
    make_certificates(tmp_path, names=names_listed("server"))
    assert not (tmp_path / "client").exists()
    assert listed(tmp_path / "server") == []
    before = content(tmp_path)
    before.pop("server/allowed.txt")  # which gets a line
    make_certificates(tmp_path, names=names_listed("client"), days=9999)
    assert before.items() <= content(tmp_path).items()
    load_credentials(tmp_path / "client", CLIENT)
    shake(*contexts(tmp_path, "server", "client"))
    assert listed(tmp_path / "server") == ["client"]
    assert listed(tmp_path / "client") == ["server"]
    authority = read_certificate(tmp_path / "ca" / "ca.pem")
    certificate = read_certificate(tmp_path / "client" / "cert.pem")
    assert certificate.not_valid_after_utc == authority.not_valid_after_utc


def test_a_dealer_that_comes_later_is_known_to_all(tmp_path):
    make_certificates(tmp_path)
    make_certificates(tmp_path, names=("dealer",), dealer_hosts=["dealer.example.org"])
    make_certificates(tmp_path, names=("late",))
    listening = Credentials(folder=tmp_path / "dealer").listening_context()
    for name in ("server", "client", "late"):
        context = Credentials(folder=tmp_path / name).dealer_context()
        shake(listening, context, host="dealer.example.org")
    assert not (tmp_path / "dealer" / "allowed.txt").exists()
    assert not (tmp_path / "dealer" / "dealer-ca.pem").exists()


def test_a_revoked_client_stays_off_the_list(tmp_path):
    make_certificates(tmp_path, names=("server", "one", "two"))
    revoke_client(tmp_path, "one")
    assert listed(tmp_path / "server") == ["two"]
    make_certificates(tmp_path, names=("three",))
    assert listed(tmp_path / "server") == ["three", "two"]
    with pytest.raises(UserError, match="lists no 'one'"):
        revoke_client(tmp_path, "one")
    for path in (tmp_path / "one").iterdir():  # it may get a new certificate
        path.unlink()
    (tmp_path / "one").rmdir()
    issued = make_certificates(tmp_path, names=("one",))
    assert listed(tmp_path / "server") == ["one", "three", "two"]
    assert issued.fingerprints["one"] in read_allowed(tmp_path / "server" / "allowed.txt")


def test_mistakes(tmp_path):
    for name, message in (
        ("a b", "cannot be a client's name"),
        ("", "cannot be a client's name"),
        ("ca", "is the name of another folder"),
        ("dealer-ca", "is the name of another folder"),
    ):
        with pytest.raises(UserError, match=message):
            make_certificates(tmp_path / "certs", names=(name,))
    with pytest.raises(UserError, match="'a b' is neither a host name"):
        make_certificates(tmp_path / "certs", hosts=["a b"])
    with pytest.raises(UserError, match="a day or more"):
        make_certificates(tmp_path / "certs", days=0)
    assert not (tmp_path / "certs").exists()
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds other things, such as thesis\.txt"):
        make_certificates(tmp_path, fresh=True)


def certs_command(*arguments, code=0):
    """Run `mpcvit certs`, and return what it prints."""
    result = CliRunner().invoke(app, ["certs", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_the_command_makes_adds_and_revokes(tmp_path):
    output = certs_command("--out", tmp_path, "--for", "server,hospital", "--json")
    made = json.loads(output)
    assert set(made["fingerprints"]) == {"server", "hospital"}
    assert listed(tmp_path / "server") == ["hospital"]
    added = json.loads(certs_command("add", "clinic", "--out", tmp_path, "--json"))
    assert added["fingerprint"] in read_allowed(tmp_path / "server" / "allowed.txt")
    assert "no longer allowed" in certs_command("revoke", "hospital", "--out", tmp_path)
    assert listed(tmp_path / "server") == ["clinic"]
    shake(*contexts(tmp_path, "server", "clinic"))


def test_the_command_adds_clients_alone(tmp_path):
    certs_command("--out", tmp_path)
    for name in ("dealer", "server"):
        output = certs_command("add", name, "--out", tmp_path, code=2)
        assert f"'{name}' is not the name of a client" in output
    assert not (tmp_path / "dealer").exists()
    output = certs_command("add", "clinic", "--out", tmp_path / "elsewhere", code=2)
    assert "there is no authority" in output

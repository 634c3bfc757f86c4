"""SPU's own TLS: who gets through on the link, and who does not."""

import subprocess
import sys
from datetime import datetime, timedelta, timezone

import pytest

from mpcvit.runtime.certificates import make_certificates, roles_named
from mpcvit.runtime.roles import free_addresses

# A party that connects, sends a word and waits for one; or says why it cannot.
PARTY = """
import sys
from pathlib import Path
from mpcvit.errors import UserError
from mpcvit.profile import Limits, Protocol
from mpcvit.runtime.link import connect
from mpcvit.runtime.roles import Role
from mpcvit.runtime.tls import Credentials
name, ours, theirs, folder, session, connect_s, silence_s = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
role = Role(name)
(peer,) = {Role.MODEL_OWNER, Role.DATA_OWNER} - {role}
try:
    channel = connect(
        role,
        Protocol.SEMI2K,
        {role: ours, peer: theirs},
        Limits(connect_s=float(connect_s), silence_s=float(silence_s)),
        session,
        Credentials(folder=Path(folder)) if folder else None,
    )
    channel.send(peer, b"a secret")
    print("heard", channel.receive(peer), flush=True)
except UserError as error:
    print("failed:", error, flush=True)
sys.stdin.readline()  # until the other has spoken too
__import__("os")._exit(0)
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder / "pair", days=30)
    make_certificates(folder / "foreign")
    # signed by an authority that is still valid, and trusted
    make_certificates(folder / "past", roles=roles_named("server"), days=30)
    past = datetime.now(timezone.utc) - timedelta(days=9)
    make_certificates(folder / "past", roles=roles_named("client"), days=8, now=past)
    # trusts the right authority, but was signed by another
    (folder / "mixed").mkdir()
    for name, source in (("key", "foreign"), ("cert", "foreign"), ("ca", "pair")):
        content = (folder / source / "client" / f"{name}.pem").read_bytes()
        (folder / "mixed" / f"{name}.pem").write_bytes(content)
    return folder


class Pair:
    """Two parties, started and held back until `meet`."""

    def __init__(self, folder, server, client, *, sessions=("one", "one"), connect_s, silence_s):
        addresses = free_addresses(2)
        ours, theirs = addresses[0], addresses[1].replace("127.0.0.1", "127.0.0.2")
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._parties = [
                subprocess.Popen(
                    [
                        *(sys.executable, "-c", PARTY, *arguments, session),
                        *(str(connect_s), str(silence_s)),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd=folder,
                    text=True,
                )
                for arguments, session in (
                    (("model owner", ours, theirs, str(server)), sessions[0]),
                    (("data owner", theirs, ours, str(client or "")), sessions[1]),
                )
            ]

    def wait(self):
        for party in self._parties:
            assert party.stdout.readline() == "ready\n"

    def meet(self):
        for party in self._parties:
            party.stdin.write("\n")
            party.stdin.flush()

    def last_words(self):
        """What both say in the end, and whether a TLS handshake failed."""
        words = [
            next(line.strip() for line in party.stdout if line.startswith(("heard", "failed")))
            for party in self._parties
        ]
        for party in self._parties:
            party.communicate(timeout=60)
        return words, b"Fail to SSL_do_handshake" in self._errors.read_bytes()


PATIENT = {"connect_s": 60.0, "silence_s": 60.0}
WRONG = {
    "foreign": ("pair/server", "foreign/client"),
    "mixed": ("pair/server", "mixed"),
    "expired": ("past/server", "past/client"),
    "none": ("pair/server", None),
}


@pytest.fixture(scope="module")
def last_words(certificates, tmp_path_factory):
    """The end of each pair; all meet at once, to save time."""
    right = (certificates / "pair" / "server", certificates / "pair" / "client")
    pairs = {
        "right": Pair(tmp_path_factory.mktemp("right"), *right, **PATIENT),
        "other session": Pair(
            tmp_path_factory.mktemp("session"),
            *right,
            sessions=("one", "other"),
            **{**PATIENT, "silence_s": 5.0},
        ),
        **{
            name: Pair(
                tmp_path_factory.mktemp(name),
                certificates / server,
                client and certificates / client,
                connect_s=6.0,
                silence_s=5.0,
            )
            for name, (server, client) in WRONG.items()
        },
    }
    for pair in pairs.values():
        pair.wait()
    for pair in pairs.values():
        pair.meet()
    return {name: pair.last_words() for name, pair in pairs.items()}


def test_a_pair_hears_each_other(last_words):
    assert last_words["right"][0] == ["heard b'a secret'"] * 2


@pytest.mark.parametrize("name", WRONG)
def test_others_hear_nothing(last_words, name):
    heard, handshake_failed = last_words[name]
    assert not any("heard" in words for words in heard)
    assert heard[0].startswith("failed: no connection to the data owner")
    assert handshake_failed


def test_another_session_hears_nothing(last_words):
    """The name of a session is a secret of its parties, and it keeps strangers out."""
    sentence = "failed: another party sent nothing for 5 s; the run was given up"
    assert last_words["other session"][0] == [sentence] * 2

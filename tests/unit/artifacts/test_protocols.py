"""Protocols: rows that nothing else in the source knows by name."""

import ast
import re
from pathlib import Path

import pytest

import mpcvit
from mpcvit.artifacts.profile import Profile
from mpcvit.artifacts.protocols import PROTOCOLS, Dealer, Truncation
from mpcvit.codec import decode, encode

PACKAGE = Path(mpcvit.__file__).parent
ROWS = PACKAGE / "artifacts" / "protocols.py"
_NAMED = re.compile("|".join(PROTOCOLS), re.IGNORECASE)
# Lower-case words are names of shipped profiles, or parts of SPU's own paths.
_NAMED_IN_TEXT = re.compile("|".join([*PROTOCOLS, *(name.title() for name in PROTOCOLS)]))


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_row(protocol):
    profile = Profile(protocol=protocol)
    assert encode(profile)["protocol"] == protocol.name
    assert decode(Profile, encode(profile), "again").protocol is protocol
    assert profile.dealer is protocol.dealers[0]
    assert profile.dealer is not Dealer.FIRST_PARTY_INSECURE  # never unless asked for
    assert Truncation.FAITHFUL in protocol.truncations
    assert profile.trust == protocol.trust


def test_spu_knows_every_row():
    from spu import libspu

    for name in PROTOCOLS:
        assert getattr(libspu.ProtocolKind, name).name == name


def test_nothing_else_asks_for_a_protocol_by_name():
    """Docstrings and comments may name protocols; code and its messages may not."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path != ROWS:
            found += [f"{path.relative_to(PACKAGE)}:{line}" for line in _namings(path.read_text())]
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "if profile.protocol is CHEETAH: pass",
        "if name == 'ABY3': pass",
        "row = PROTOCOLS['SEMI2K']",
        "class A:\n    needs_semi2k: bool",
        "import cheetah",
        "def f(of_aby3): pass",
    ],
)
def test_the_search_sees_it(code):
    assert list(_namings(code))


def _namings(text):
    """The lines whose code names a protocol."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            is_text = isinstance(node.value, str) and id(node) not in docstrings
            if is_text and _NAMED_IN_TEXT.search(node.value):
                yield node.lineno
            continue
        names = [getattr(node, field, None) for field in ("id", "attr", "name", "arg")]
        if any(isinstance(name, str) and _NAMED.search(name) for name in names):
            yield getattr(node, "lineno", 0)

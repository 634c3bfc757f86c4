"""Words that make a reader stop, and the size of the README."""

import re

import pytest

from tests.docs.pages import PAGES, ROOT, prose

SOURCES = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "tools").glob("*.py"))
BANNED = (
    *("whoever", "whosoever", "told", "dear", "dearer", "likewise", "lest", "of which"),
    *("so many", "stand-in", "stand-ins", "printed are", "thereof", "whence", "thither"),
)
_WORDS = re.compile(rf"(?<![\w-])({'|'.join(BANNED)})(?![\w-])", re.IGNORECASE)


@pytest.mark.parametrize("file", PAGES, ids=lambda file: file.name)
def test_no_banned_words(file):
    lines = prose(file.read_text("utf-8")).splitlines()
    found = [(line, match[0]) for line in lines for match in _WORDS.finditer(line)]
    assert not found


def test_no_banned_words_in_the_source():
    """Docstrings, comments, help and errors are read too."""
    assert len(SOURCES) > 100
    found = [
        (str(file.relative_to(ROOT)), match[0])
        for file in SOURCES
        for match in _WORDS.finditer(file.read_text("utf-8"))
    ]
    assert not found


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 120

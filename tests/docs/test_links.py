"""Links and paths of the documentation lead somewhere."""

import re

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, prose

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_PATH = re.compile(r"`([\w./-]+/[\w.-]+\.(?:py|toml|json|csv))(?::[^`]*)?`")

TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_point_at_a_file_and_a_heading(page):
    for link in _LINK.findall(prose(page.read_text("utf-8"))):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name} links to {name}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{target.name} has no heading #{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page):
    """Files of this repository are named from its root, modules from `src/mpcvit/`."""
    for path in _PATH.findall(prose(page.read_text("utf-8"))):
        if path.split("/")[0] != "runs" and "NAME" not in path:
            homes = (ROOT, ROOT / "src" / "mpcvit", page.parent)
            assert any((home / path).exists() for home in homes), f"{page.name} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page):
    named = set(re.findall(r"\btest_\w+(?=`|\[)", prose(page.read_text("utf-8"))))
    assert named <= TESTS


def test_the_index_lists_every_page():
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index

"""The Markdown pages of the repository, and what is in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def blocks(page, language):
    """Return the fenced blocks of a language on a page."""
    return all_blocks(page.read_text("utf-8"), language)


def all_blocks(text, language=None):
    """Return the bodies of all fenced blocks, or of those of a language."""
    return [body for kind, body in _BLOCK.findall(text) if language in (None, kind)]


def prose(text):
    """Return a page's text without fenced blocks and comments."""
    return _COMMENT.sub("", _BLOCK.sub("", text))


def anchors(page):
    """Return the anchors of a page: its headings as GitHub names them, and explicit ids."""
    text = prose(page.read_text("utf-8"))
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found

"""The tables of the documentation hold the numbers of their files."""

import doctest
import re
import shutil
import sys

import pytest
from PIL import Image

from mpcvit.errors import UserError
from tests.docs.pages import ROOT, all_blocks, prose
from tests.tools import load_tool

tool = load_tool("fill_docs")
filled, make_table, write_tables = tool.filled, tool.make_table, tool.write_tables

NUMBERED = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("paper_map", "performance", "results", "search")),
]
_MARKED = re.compile(r"<!-- (table|text): .*?<!-- end -->", re.DOTALL)
_MEASURED = re.compile(r"[-+]?[\d,]+\.\d+(e[-+]\d+)?( (%|s|MB|GB))?")


@pytest.mark.parametrize("page", tool.pages(ROOT), ids=lambda page: page.name)
def test_a_page_and_its_files_agree(page):
    """If this fails, run `python tools/fill_docs.py` and look at what changed."""
    assert filled(page, ROOT) == page.read_text("utf-8")


@pytest.mark.parametrize("page", NUMBERED, ids=lambda page: page.name)
def test_no_number_of_a_table_or_an_output_is_typed(page):
    """Outside of comments, no cell is a measured number, and no block is an output with one."""
    text = re.sub(
        r"<!-- (table|text): .*?<!-- end -->", "", page.read_text("utf-8"), flags=re.DOTALL
    )
    rows = [line.strip("|").split("|") for line in prose(text).splitlines() if line.startswith("|")]
    typed = [cell for row in rows for cell in row if _MEASURED.fullmatch(cell.strip())]
    outputs = [body for body in all_blocks(text, "") if not body.startswith("mpcvit ")]
    assert not [*typed, *(body for body in outputs if re.search(r"\d\.\d", body))]


def test_pages_with_numbers_have_tables_that_are_not_empty():
    for page in NUMBERED:
        tables = re.findall(r"<!-- table: .*? -->\n(.*?)<!-- end -->", page.read_text(), re.DOTALL)
        assert tables
        assert all(len(table.splitlines()) > 2 for table in tables)


@pytest.fixture
def clone(tmp_path):
    """A clone with one page and one result file."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "times.csv").write_text("network,form,s\na,plain,3\na,lowered,1.26\n")
    (tmp_path / "README.md").write_text(
        "Before\n<!-- table: times per=network by=form | net: {network} | s: {lowered[s]:.1f} | "
        "MB: {lowered[sent_mb]:.1f} -->\n<!-- end -->\nAfter\n"
    )
    return tmp_path


def test_a_table_follows_its_file(clone):
    assert write_tables(clone) == [clone / "README.md"]
    assert "| a | 1.3 | – |\n<!-- end -->\nAfter\n" in (clone / "README.md").read_text()
    assert write_tables(clone) == []
    (clone / "results" / "times.csv").write_text("network,form,s\na,lowered,9\n")
    assert filled(clone / "README.md", clone) != (clone / "README.md").read_text()


def test_rows_are_selected_by_value(clone):
    table = make_table("times form=plain,other | s: {s}", clone)
    assert table.splitlines()[2:] == ["| 3 |"]


def test_a_table_that_cannot_be_made_names_its_page(clone):
    (clone / "README.md").write_text(
        "<!-- table: times per=other by=form | a: {a} -->\n<!-- end -->"
    )
    with pytest.raises(UserError, match=r"README\.md: cannot make the table"):
        write_tables(clone)


def test_an_excerpt_follows_its_file_and_marks_what_it_leaves_out(clone):
    output, page = clone / "results" / "output.txt", clone / "README.md"
    output.write_text("noise\ntruth  a\ncat    b\ndog    c\nspeed-up 2\nmore\n")
    page.write_text('Before\n<!-- text: output.txt lines="truth,speed" -->\n<!-- end -->\nAfter\n')
    write_tables(clone)
    assert "-->\n```\ntruth  a\n…\nspeed-up 2\n```\n<!-- end -->\nAfter" in page.read_text("utf-8")
    page.write_text(page.read_text("utf-8").replace(' lines="truth,speed"', ""), "utf-8")
    write_tables(clone)
    assert "output.txt -->\n```\nnoise\n" in page.read_text("utf-8")
    assert "speed-up 2\nmore\n```\n<!-- end -->" in page.read_text("utf-8")
    page.write_text('<!-- text: output.txt lines="truth,speed" -->\n<!-- end -->')
    output.write_text("truth\n")
    with pytest.raises(UserError, match="no line that begins with 'speed'"):
        write_tables(clone)
    output.unlink()
    with pytest.raises(UserError, match=r"README\.md: cannot make the text"):
        write_tables(clone)


def test_another_folder_is_refused(clone):
    shutil.rmtree(clone / "results")
    with pytest.raises(UserError, match="clone of mpcvit"):
        write_tables(clone)


def test_the_picture_of_the_method_names_every_step():
    (axes,) = load_tool("draw_method").draw_method().axes
    texts = [text.get_text() for text in axes.texts]
    for word in ("search", "distil", "lower", "run", "architecture", "checkpoint", "program"):
        assert word in texts


def test_the_script_writes_tables_and_figures(tmp_path, monkeypatch, capsys):
    unneeded = shutil.ignore_patterns("*.safetensors", "*.png")
    for name in ("docs", "latency", "results", "src/mpcvit/demo/shipped", "src/mpcvit/experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unneeded)
    figure = tmp_path / "results" / "secure" / "precision.png"  # the others are not to be drawn
    figure.write_bytes(b"drawn by an earlier version")
    page = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text("utf-8")
    page.write_text(
        re.sub(r"^\| softmax \|.*$", "| softmax | 1 |", text, flags=re.MULTILINE), "utf-8"
    )
    shutil.rmtree(tmp_path / "docs" / "figures")
    monkeypatch.chdir(tmp_path)
    tool.main()
    written = [line.removeprefix("wrote ") for line in capsys.readouterr().out.splitlines()]
    assert written == [
        *("README.md", "docs/figures/method.png", "docs/figures/lowered-measured-s.png"),
        "results/secure/precision.png",
    ]
    stored = ROOT / "results" / "secure" / "precision.png"
    with Image.open(figure) as ours, Image.open(stored) as theirs:
        versions = ours.info["Software"], theirs.info["Software"]
    # another version of Matplotlib, as under Python 3.10, draws other letters
    assert versions[0] != versions[1] or figure.read_bytes() == stored.read_bytes()
    assert page.read_text("utf-8") == text
    assert all((tmp_path / name).exists() for name in written)


def test_the_examples_of_the_script_hold():
    assert doctest.testmod(sys.modules["docs_rows"]).attempted == 3

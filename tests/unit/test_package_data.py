"""A wheel holds whatever the package reads: each file of it is named in pyproject.toml."""

import sys
from pathlib import Path

import mpcvit
from tests.docs.pages import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_every_file_that_is_not_code_is_package_data():
    home = Path(mpcvit.__file__).parent
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["mpcvit"]
    named = {file for pattern in patterns for file in home.glob(pattern) if file.is_file()}
    held = {
        file
        for file in home.rglob("*")
        if file.is_file() and file.suffix != ".py" and "__pycache__" not in file.parts
    }
    assert held == named
    for needed in ("artifacts/profiles/semi2k-dealer-wan.toml", "report/assets/page.js"):
        assert home / needed in held
    assert {file.suffix for file in held} >= {".safetensors", ".png", ".jsonl", ".json"}


def test_every_folder_of_code_is_a_package():
    home = Path(mpcvit.__file__).parent
    folders = {file.parent for file in home.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []

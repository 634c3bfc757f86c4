"""A small model of Hugging Face and labelled pictures, as docs/your_model.md makes them."""

import re

import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "your_model.md"
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def write_model(folder, **sizes):
    """Run the page's script, with other sizes than the page's."""
    script = blocks(PAGE, "python")[0]
    (line,) = re.findall(r"^WIDTH.*$", script, re.MULTILINE)
    names, values = (part.split(", ") for part in line.split(" = "))
    known = dict(zip(names, values, strict=True)) | {name: str(own) for name, own in sizes.items()}
    assert len(known) == len(names), f"the page's script has no {sizes.keys() - set(names)}"
    script = script.replace(line, f"{', '.join(known)} = {', '.join(known.values())}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(script, str(PAGE), "exec"), {})
    return folder / "my-vit"


def write_photos(folder, count):
    """Write handwritten digits into a folder for each class."""
    digits = load_digits()
    for index in range(count):
        split = "test" if index % 3 == 0 else "train"
        path = folder / "photos" / split / NAMES[digits.target[index]] / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((15.9 * digits.images[index]).astype("uint8")).save(path)
    return folder / "photos"

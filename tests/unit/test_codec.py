"""One codec for every file and message."""

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest

from mpcvit import codec
from mpcvit.codec import ADDED, decode, encode, load, register, require, save, tagged
from mpcvit.errors import UserError


class Colour(str, Enum):
    RED = "red"
    BLUE = "blue"


@tagged("circle")
@dataclass(frozen=True, kw_only=True)
class Circle:
    radius: float

    def __post_init__(self):
        require(self.radius > 0, "radius", "must be positive")


@tagged("square")
@dataclass(frozen=True, kw_only=True)
class Square:
    side: float


class Row:
    """A value that documents hold by its name."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def encoded(self):
        return self.name

    @classmethod
    def decoded(cls, document, where):
        if document not in ("softmax", "scaling"):
            raise UserError(f"{where} cannot be {document!r}")
        return cls(document)


@register("test-drawing/1", "drawing")
@dataclass(frozen=True, kw_only=True)
class Drawing:
    name: str
    shapes: tuple[Circle | Square, ...]
    rows: tuple[Row, ...] = ()
    colours: dict[Colour, int] = field(default_factory=dict)
    prices: dict[Row, float] = field(default_factory=dict)
    frame: Square | None = None
    details: dict[str, Any] = field(default_factory=dict)
    corners: tuple[tuple[float, float], ...] = ()


def drawing():
    return Drawing(
        name="house",
        shapes=(Square(side=2.0), Circle(radius=1.5)),
        rows=(Row("softmax"),),
        colours={Colour.RED: 3},
        prices={Row("scaling"): 0.5},
        frame=Square(side=7.0),
        details={"by": ["me", 1]},
        corners=((0.0, 1.0), (2.0, 3.0)),
    )


def test_what_is_encoded_is_plain_json_and_comes_back():
    document = encode(drawing())
    assert json.loads(json.dumps(document)) == document
    assert decode(Drawing, document, "here") == drawing()


def test_a_file_says_what_it_is(tmp_path):
    save(tmp_path / "drawing.json", drawing())
    text = (tmp_path / "drawing.json").read_text()
    assert text.startswith('{\n  "format": "test-drawing/1"')
    assert load(Drawing, tmp_path / "drawing.json") == drawing()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "test-drawing/0"}, "is not a drawing: its format is 'test-drawing/0'"),
        ({"nam": 1}, "unknown key 'nam'; did you mean 'name'?"),
        ({"name": 3}, "'name' must be a string, not 3"),
        (
            {"shapes": [{"is": "line"}]},
            r"'shapes\[0\]' must be one of circle, square, not \"line\"",
        ),
        ({"shapes": [{"is": "circle", "radius": -1}]}, r"'shapes\[0\].radius' must be positive"),
        ({"shapes": [{"is": "circle", "radius": True}]}, r"radius' must be a number, not true"),
        ({"shapes": 3}, "'shapes' must be a list, not 3"),
        ({"rows": ["sofmax"]}, r"'rows\[0\]' cannot be 'sofmax'"),
        ({"colours": {"green": 1}}, "'colours' cannot be 'green'"),
        ({"colours": {"red": 1.5}}, "'colours.red' must be a whole number"),
        ({"prices": []}, "'prices' must be an object"),
        ({"frame": 3}, "'frame' must be a section, not 3"),
        ({"corners": [[1.0]]}, r"'corners\[0\]' must have 2 entries, not 1"),
        ({"corners": [[1.0, float("nan")]]}, r"'corners\[0\]\[1\]' must be finite"),
    ],
)
def test_refusals_name_the_key(change, message):
    with pytest.raises(UserError, match=f"^here.*{message}"):
        decode(Drawing, {**encode(drawing()), **change}, "here")


def test_a_missing_key_is_named():
    document = encode(drawing())
    del document["name"]
    with pytest.raises(UserError, match="key 'name' is missing"):
        decode(Drawing, document, "here")


def test_no_document_at_all():
    with pytest.raises(UserError, match="here is not a drawing: its format is None"):
        decode(Drawing, [], "here")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match="there is no drawing"):
        load(Drawing, tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        load(Drawing, tmp_path / "broken.json")
    with pytest.raises(UserError, match="cannot read the drawing"):
        load(Drawing, tmp_path)


def test_a_refused_value_stays_short():
    with pytest.raises(UserError) as refusal:
        decode(Drawing, {**encode(drawing()), "name": ["x"] * 10_000}, "here")
    assert len(str(refusal.value)) < 200


def test_long_unions_need_tags():
    @dataclass(frozen=True)
    class Untagged:
        side: float

    with pytest.raises(AssertionError, match="needs a tag"):
        codec.decode(Untagged | Circle, {"is": "circle", "radius": 1.0}, "here")


@dataclass(frozen=True)
class Grown:
    old: int = 0
    new: Square = field(default=Square(side=1.0), metadata=ADDED)


def test_an_added_field_is_written_only_where_it_is_used():
    assert encode(Grown()) == {"old": 0}
    assert decode(Grown, {"old": 0}, "file") == Grown()
    used = Grown(new=Square(side=2.0))
    assert decode(Grown, encode(used), "file") == used
    assert "new" in encode(used)

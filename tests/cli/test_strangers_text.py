"""What files, servers and names of pictures bring is printed, and nothing in it is obeyed."""

import json

import pytest
from safetensors.numpy import save_file

from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.record import Reveal
from mpcvit.codec import encode
from mpcvit.errors import shown
from mpcvit.kinds import table
from mpcvit.model.checkpoint import read_tensors
from mpcvit.report.live import console, tell
from mpcvit.secure.answers import ImageAnswer, KnownModel
from tests.command import invoke
from tests.models import small_checkpoint, small_config

CLEAR = "\x1b[2J\x1b[H"  # clears a terminal's screen
LINE = "cat\nphoto2.png: dog"  # would look like another picture's answer
TURN = "\u202egnp.exe"  # is read from the right


@pytest.mark.parametrize("evil", [CLEAR, LINE, TURN, "\r", "\x9b2J", "\u2028"])
def test_what_is_shown_is_one_line_of_plain_characters(evil):
    assert shown(evil).isprintable()
    assert shown(f"naïve 猫 {evil}").startswith("naïve 猫 \\") or evil == LINE


@pytest.mark.parametrize("reveal", [Reveal.CLASS, Reveal.TOP5, Reveal.LOGITS])
@pytest.mark.parametrize("evil", [CLEAR, LINE])
def test_a_servers_class_is_a_word(evil, reveal):
    model = KnownModel(digest="", classes=(evil, "b"), reveal=reveal)
    values = (1.0, 0.0) if reveal is Reveal.LOGITS else None
    answer = ImageAnswer(model=model, values=values, chosen=(0,), trusted=True, close=False)
    assert answer.words.isprintable()
    assert answer.likeliest == (evil,)  # in Python it is what it is


def test_a_note_on_a_picture_with_any_name_is_printed():
    """Brackets are no markup, or this would end in an error."""
    with console.capture() as captured:
        tell(f"note: left out: [/b]{CLEAR}.png is not an image\nand so on")
    assert captured.get() == "note: left out: [/b]\\x1b[2J\\x1b[H.png is not an image\nand so on\n"


def test_commands_show_a_strangers_file(tmp_path):
    config = small_config(depth=1)
    checkpoint = small_checkpoint(config, Architecture.uniform(table.SOFTMAX, depth=1, heads=3))
    object.__setattr__(checkpoint, "classes", (CLEAR, *checkpoint.classes[1:]))
    checkpoint.save(tmp_path / "model.safetensors")
    assert "\x1b" not in invoke("show", tmp_path / "model.safetensors").output
    model = encode(config) | {f"x{CLEAR}": 1}
    tensors, metadata = read_tensors(tmp_path / "model.safetensors")
    metadata["model"] = json.dumps(model)
    save_file(tensors, tmp_path / "odd.safetensors", metadata)
    refused = invoke("show", tmp_path / "odd.safetensors", code=2).output
    assert "x\\x1b[2J" in refused
    assert "\x1b" not in refused

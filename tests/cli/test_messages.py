"""Sentences that must help: each says what is there, and what to do."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

import mpcvit
from mpcvit import storage
from mpcvit.artifacts.architecture import Architecture
from mpcvit.artifacts.config import load_config
from mpcvit.artifacts.profile import InsecureProfileWarning, load_profile
from mpcvit.artifacts.shipped import PROFILES, shipped_names
from mpcvit.bench.networks import random_checkpoint
from mpcvit.cli import PANELS, app
from mpcvit.cli import run as cli_run
from mpcvit.cli.setup import configs
from mpcvit.errors import UserError
from mpcvit.kinds import table
from mpcvit.secure import run as secure_run
from tests.command import invoke
from tests.configs import TINY
from tests.docs.commands import commands
from tests.docs.pages import PAGES

SHIPPED = Path(mpcvit.__file__).parent / "demo" / "shipped" / "mpcvit"
GOLDEN = Path(__file__).parents[1] / "golden" / "foreign"
INSECURE = {name for name in shipped_names(PROFILES) if load_profile(name).warning}


@pytest.fixture(scope="module")
def checkpoint():
    model = load_config(TINY).model
    return random_checkpoint(model, Architecture.uniform(table.SCALING, depth=2, heads=2))


def test_the_help_groups_every_command():
    listed = [name for names in PANELS.values() for name in names]
    assert sorted(listed) == sorted(get_command(app).commands)
    output = invoke("--help").output
    places = [output.index(panel) for panel in PANELS]
    assert places == sorted(places)
    assert places[0] < output.index("│ demo ") < places[1] < output.index("│ train ") < places[2]


def test_a_full_disk_is_told_in_units_that_show_something(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 2_500})
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(UserError, match=r"has 2\.5 kB free, but 48\.0 kB are needed"):
        storage.require_room(tmp_path, 48_000)


@pytest.mark.parametrize(("classes", "shown"), [(4, False), (10, True)])
def test_top5_is_shown_where_it_says_something(classes, shown, monkeypatch, tmp_path):
    from mpcvit.cli import models
    from mpcvit.train import evaluate
    from mpcvit.train.evaluate import Evaluation

    config = load_config(TINY, [f"model.classes={classes}"]).model
    model = random_checkpoint(config, Architecture.uniform(table.SCALING, depth=2, heads=2))
    model.save(tmp_path / "model.safetensors")
    found = Evaluation(images=8, top1=0.5, top5=1.0, loss=1.0, seconds=1.0, stray=2)
    split = type("Split", (), {"matching": "matched by name"})
    monkeypatch.setattr(models, "load_images", lambda *_: split)
    monkeypatch.setattr(evaluate, "evaluate_checkpoint", lambda *_: found)
    output = invoke("evaluate", tmp_path / "model.safetensors").output
    assert ("top-5" in output) is shown
    assert "top-1" in output
    assert "of 2 images the network gives no numbers" in output


def test_programs_are_evaluated_in_batches_that_compile_quickly(monkeypatch):
    from mpcvit.cli import models
    from mpcvit.lowering import emulate

    sizes = []

    def refuse(*_, batch_size, **__):
        sizes.append(batch_size)
        raise UserError("enough")

    monkeypatch.setattr(models, "load_images", lambda *_: None)
    monkeypatch.setattr(emulate, "emulate", refuse)
    for arguments in ((), ("--batch-size", 7)):
        assert "enough" in invoke("evaluate", SHIPPED / "program", *arguments, code=2).stderr
    assert sizes == [64, 7]


def test_equal_layers_share_a_line():
    scaling = Architecture.uniform(table.SCALING, depth=12, heads=3)
    softmax = Architecture.uniform(table.SOFTMAX, depth=1, heads=3)
    mixed = Architecture(layers=(*softmax.layers, *scaling.layers, *softmax.layers))
    assert mixed.picture().splitlines()[1:-1] == [
        "    0  E E E  g",
        " 1-12  S S S  g",
        "   13  E E E  g",
    ]


def test_import_does_not_overwrite(tmp_path):
    source, out = GOLDEN / "authors_heads.pth.tar", tmp_path / "model.safetensors"
    out.write_text("precious")
    refused = invoke("import", source, "--out", out, code=2).stderr
    assert f"{out} exists already; add --fresh" in refused
    assert out.read_text() == "precious"
    invoke("import", source, "--out", out, "--fresh")
    assert mpcvit.load(out).config.classes


def test_lowering_does_not_replace_a_folder_of_other_things(tmp_path, checkpoint):
    model, photos = tmp_path / "model.safetensors", tmp_path / "photos"
    checkpoint.save(model)
    photos.mkdir()
    (photos / "cat.png").write_text("precious")
    said = invoke("lower", model, "--calibrate", photos, "--out", photos, code=2).stderr
    assert f"{photos} holds other things, such as cat.png; choose a new folder" in said
    said = invoke("lower", model, "--calibrate", photos, "--out", model, code=2).stderr
    assert f"cannot write {model}: Not a directory" in said
    assert (photos / "cat.png").read_text() == "precious"


@pytest.mark.parametrize("command", [("report", "runs"), ("profile", TINY), ("pipeline", TINY)])
def test_out_is_checked_before_the_work(command, tmp_path):
    said = invoke(*command, "--out", tmp_path, code=2).stderr
    assert f"cannot write {tmp_path}: it is a folder; name a file in it" in said


def test_a_folder_is_called_a_folder(tmp_path, checkpoint):
    run_folder, foreign, other = (tmp_path / name for name in ("run", "foreign", "other"))
    for folder in (run_folder, foreign, other):
        folder.mkdir()
    checkpoint.save(run_folder / "model.safetensors")
    (foreign / "config.json").write_text("{}")
    (foreign / "model.safetensors").write_text("")
    assert f"give the checkpoint in it: {run_folder / 'model.safetensors'}" in (
        invoke("show", run_folder, code=2).stderr
    )
    assert f"{other} is a folder: a checkpoint is a file" in (invoke("show", other, code=2).stderr)
    photo = GOLDEN / "authors_heads.npz"  # any file: it is not reached
    for command in ("show", "run"):
        said = invoke(command, foreign, *([photo] if command == "run" else []), code=2).stderr
        assert f"mpcvit import {foreign} --out model.safetensors" in said
    said = invoke("run", other, photo, code=2).stderr
    assert "it has no program.json; 'mpcvit lower' makes programs" in said
    said = invoke("run", run_folder, photo, code=2).stderr
    assert f"give the checkpoint in it: {run_folder / 'model.safetensors'}" in said


def test_what_is_ready_already_is_called_so(tmp_path, checkpoint):
    model, program = tmp_path / "model.safetensors", tmp_path / "program"
    checkpoint.save(model)
    program.mkdir()
    (program / "program.json").write_text("{}")
    said = invoke("import", model, "--out", tmp_path / "new.safetensors", code=2).stderr
    assert f"{model} is a checkpoint of mpcvit already" in said
    for command in (("show", program), ("lower", program, "--out", tmp_path / "new")):
        assert "it is a lowered program already" in invoke(*command, code=2).stderr
    assert f"{model} is no program" in invoke("explain", model, code=2).stderr
    said = invoke("explain", tmp_path / "absent", code=2).stderr
    assert f"there is no program {tmp_path / 'absent'}" in said


def test_a_wrong_file_is_called_what_it_is(tmp_path, checkpoint):
    text, photo, model = (tmp_path / name for name in ("text.txt", "photo.png", "m.safetensors"))
    program = tmp_path / "program"
    text.write_text("hello")
    photo.write_bytes(b"\x89PNG")
    checkpoint.save(model)
    program.mkdir()
    (program / "program.json").write_text('{"format": "mpcvit-program/3"}')
    lower = ("lower", model, "--out", tmp_path / "new", "--calibrate")
    for command, said in (
        (("run", program, photo), "program.json is damaged, as it names no engine; lower the"),
        (("explain", text), f"{text} is no program: 'mpcvit lower' makes folders"),
        (("configs", photo), f"cannot read the configuration {photo}: it is not a text"),
        (("estimate", tmp_path / "no.safetensors"), "there is no file"),
        (("demo", "--out", text), f"cannot write into {text}: a file stands there; name a folder"),
        (("estimate", tmp_path), "holds no program: it has no program.json"),
        ((*lower, text), f"{text} is a file; name a folder of pictures"),
        ((*lower, tmp_path / "none"), f"no folder {tmp_path / 'none'}; name a folder of pictures"),
    ):
        assert said in invoke(*command, code=2).stderr


def test_what_this_user_may_not_open_is_named(monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "closed/my\x1b.toml")

    monkeypatch.setattr(configs, "find_shipped", refuse)
    said = invoke("configs", "my", code=2).stderr
    assert said.startswith("mpcvit: this user may not open closed/my\\x1b.toml; change its perm")


def test_a_folder_of_anything_is_not_read_through(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_text("")
    monkeypatch.setattr(cli_run, "_digest", lambda model: pytest.fail("read it all"))
    for arguments in ((), ("--profile", "cheetah")):
        said = invoke("run", tmp_path, GOLDEN / "authors_heads.npz", *arguments, code=2).stderr
        assert "holds no program" in said


@pytest.mark.parametrize(
    "command", [("train", TINY, "--out"), ("pipeline", TINY, "--runs"), ("demo", "--out")]
)
def test_a_folder_in_use_is_left_alone(command, tmp_path):
    folder = tmp_path / load_config(TINY).name
    place = tmp_path if command[0] == "pipeline" else folder
    with storage.holding(folder):
        said = invoke(*command, place, code=2).stderr
        assert f"{folder} is in use by process {os.getpid()} on " in said
        assert [file.name for file in folder.iterdir()] == [storage.LOCK_FILE]


def test_an_insecure_profile_is_asked_for_in_python(checkpoint, monkeypatch):
    reached = []
    monkeypatch.setattr(secure_run, "_run_apart", lambda *settings: reached.append(settings))
    monkeypatch.setattr(secure_run, "make_result", lambda *_, **__: None)
    pixels = np.zeros((1, 8, 8, 1), np.uint8)
    for name in INSECURE:
        with pytest.raises(UserError, match="add insecure=True"):
            mpcvit.run(checkpoint, pixels, profile=name)
    assert not reached
    with pytest.warns(InsecureProfileWarning, match="INSECURE dealer"):
        mpcvit.run(checkpoint, pixels, profile="semi2k", insecure=True)
    mpcvit.run(checkpoint, pixels, profile="cheetah")
    assert len(reached) == 2


def test_an_insecure_profile_is_asked_for_in_a_shell(checkpoint, tmp_path):
    """By its name and by --insecure; the simulator is private in no case."""
    checkpoint.save(tmp_path / "model.safetensors")
    for name in INSECURE:
        said = invoke("run", tmp_path / "model.safetensors", tmp_path, "--profile", name, code=2)
        assert "INSECURE dealer" in said.stderr
        assert "take --profile semi2k-dealer or cheetah, or add --insecure" in said.stderr
    for option in ("--insecure", "--simulate"):
        arguments = (tmp_path / "model.safetensors", tmp_path, "--profile", "semi2k", option)
        assert "holds no images" in invoke("run", *arguments, code=2).stderr  # got further


def test_swapped_arguments_are_put_in_order(checkpoint, tmp_path):
    model, photos, photo = (tmp_path / name for name in ("model.safetensors", "photos", "a.png"))
    program = SHIPPED / "program"
    photos.mkdir()
    checkpoint.save(model)
    for first, *others in ([photos, program], [photo, model], [photo, photos, model]):
        said = invoke("run", first, *others, code=2).stderr
        assert f"the arguments seem swapped: {others[-1]} looks like a model" in said
        more = " ..." if others[1:] else ""
        assert f"the model comes first: mpcvit run {others[-1]} {first}{more}\n" in said
    said = invoke("run", model, program, code=2).stderr
    assert f"the folder {program} holds no images" in said


def test_no_example_takes_an_insecure_profile():
    """Benchmarks of the paper's setting aside, whose rows carry a warning."""
    examples = [words for page in PAGES for words in commands(page)]
    todo = dict(get_command(app).commands)
    while todo:
        _, command = todo.popitem()
        todo |= getattr(command, "commands", {})
        examples.append((command.help or "").partition("Example: mpcvit ")[2].split())
    taken = [words for words in examples if words and words[0] != "bench" and INSECURE & {*words}]
    assert taken == []
    assert json.dumps(examples).count("cheetah") > 3

"""Answers of `mpcvit run`: printed when they are there, kept, and never asked for twice."""

import errno
import json
import os
import stat

import pytest
from PIL import Image

from mpcvit.cli import answers as printing
from mpcvit.errors import UserError
from mpcvit.secure import run as secure_run
from mpcvit.secure.answers import AnswerFile, digest_of
from mpcvit.storage import state_folder
from tests.command import invoke
from tests.models import tiny

CHECKPOINT, PIXELS = tiny()
SIMULATE = ("--profile", "semi2k", "--simulate")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    CHECKPOINT.save(path)
    return path


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index, pixels in enumerate(PIXELS):
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


@pytest.fixture
def asked(monkeypatch):
    """How many images each run was asked for."""
    counts, images_of = [], secure_run.list_images

    def count(images):
        counts.append(len(images))
        return images_of(images)

    monkeypatch.setattr(secure_run, "list_images", count)
    return counts


def fail_after(monkeypatch, count):
    """End the run once some answers were taken, as a server does that dies."""
    print_answer, printed = printing._print_answer, []

    def print_some(*arguments):
        print_answer(*arguments)
        printed.append(arguments)

    def take(self, *arguments, add=AnswerFile.add):
        add(self, *arguments)
        if len(printed) == count:
            raise RuntimeError("the server is gone")  # no UserError, which would be a failed write

    monkeypatch.setattr(printing, "_print_answer", print_some)
    monkeypatch.setattr(AnswerFile, "add", take)


def kept_aside():
    return list((state_folder() / "answers").glob("*"))


def test_an_answer_is_printed_before_the_next_image(model, pictures, monkeypatch):
    """The second picture's answer must not be needed for the first one's line."""
    fail_after(monkeypatch, 1)
    output = invoke("run", model, pictures, *SIMULATE, code=1)
    (line,) = output.stdout.splitlines()
    assert line.startswith(f"{pictures / '0.png'}: class ")
    (kept,) = kept_aside()
    assert f"1 of 3 images have an answer, kept in {kept}; add --resume" in output.stderr
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    kept.unlink()


def test_resumed_runs_ask_for_the_rest(model, pictures, asked, monkeypatch, tmp_path):
    whole = invoke("run", model, pictures, *SIMULATE).stdout.splitlines()[:3]
    assert not kept_aside()  # nothing stays of a run that ended well
    with monkeypatch.context() as patch:
        fail_after(patch, 2)
        invoke("run", model, pictures, *SIMULATE, code=1)
    resumed = invoke("run", model, pictures, *SIMULATE, "--resume")
    assert asked == [3, 3, 1]
    assert resumed.stdout.splitlines()[:3] == whole
    assert "2 answers were there already" in resumed.stderr
    assert not kept_aside()
    assert (
        "nothing to resume" in invoke("run", model, pictures, *SIMULATE, "--resume", code=2).stderr
    )


def test_an_output_that_cannot_be_written_throws_nothing_away(
    model, pictures, tmp_path, monkeypatch
):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    arguments = ("run", model, pictures, *SIMULATE, "--json")
    with monkeypatch.context() as patch:
        patch.setattr(printing, "_print_document", fail)
        said = invoke(*arguments, "--out", tmp_path / "record.json", code=2).stderr
    assert "3 of 3 images have an answer" in said
    assert "add --resume to print them again" in said
    assert "cannot write the output: No space left on device" in said
    assert (tmp_path / "record.json").exists()
    assert len(json.loads(invoke(*arguments, "--resume").stdout)["predictions"]) == 3
    assert not kept_aside()


def test_a_folder_may_change_before_a_run_is_resumed(model, pictures, asked, monkeypatch):
    """The answers of all interrupted runs count, and a run without --resume names them."""
    arguments = ("run", model, pictures, *SIMULATE)
    with monkeypatch.context() as patch:
        fail_after(patch, 1)
        invoke(*arguments, code=1)
    Image.fromarray(PIXELS[0] // 2).save(pictures / "new.png")
    with monkeypatch.context() as patch:
        fail_after(patch, 2)
        said = invoke(*arguments, "--resume", code=1).stderr
    assert "2 of 4 images have an answer" in said
    (pictures / "2.png").unlink()
    assert len(kept_aside()) == 2
    with monkeypatch.context() as patch:
        fail_after(patch, 1)
        said = invoke(*arguments, code=1).stderr
    assert "2 of 3 images have an answer of an interrupted command, which --resume would" in said
    resumed = invoke(*arguments, "--resume")
    assert asked == [3, 3, 3, 1]
    assert "2 answers were there already" in resumed.stderr
    assert not kept_aside()


def test_pictures_that_the_model_cannot_take_do_not_stop_a_folder(model, pictures, monkeypatch):
    """How many channels it takes is known in the session alone; the others run in a second one."""
    run, unfit = secure_run.run, ["0.png", "2.png"]

    def refuse(model, images, *settings, **options):
        names = [image.absolute() for image in images if image.name in unfit]
        if names:
            raise UserError("\n".join(f"{name} has 3 channels" for name in names))
        return run(model, images, *settings, **options)

    monkeypatch.setattr(secure_run, "run", refuse)
    monkeypatch.chdir(pictures.parent)
    arguments = ("run", model, pictures.name, *SIMULATE)
    output = invoke(*arguments, "--json")
    sentences = [f"pictures/{name} has 3 channels" for name in unfit]
    assert output.stderr.splitlines()[:2] == [f"note: left out: {one}" for one in sentences]
    document = json.loads(output.stdout)
    assert [row["image"] for row in document["predictions"]] == ["pictures/1.png"]
    assert document["skipped"] == sentences
    for refused in ("--strict", "pictures/0.png"):
        assert "0.png has 3 channels" in invoke(*arguments, refused, code=2).stderr
    unfit.append("1.png")
    assert "the model takes none of the pictures" in invoke(*arguments, code=2).stderr


def test_a_file_of_answers_serves_new_pictures(model, pictures, asked, tmp_path):
    file = tmp_path / "answers.jsonl"
    arguments = (model, pictures, *SIMULATE, "--answers", file)
    before = invoke("run", *arguments).stdout.splitlines()[:3]
    assert "exists already; add --resume" in invoke("run", *arguments, code=2).stderr
    (pictures / "0.png").rename(pictures / "renamed.png")  # known by its content
    Image.fromarray(PIXELS[0] // 2).save(pictures / "new.png")
    with file.open("a") as cut:
        cut.write('{"picture": "ab')  # by a kill
    document = json.loads(invoke("run", *arguments, "--resume", "--json").stdout)
    assert asked == [3, 1]
    named = {row["image"]: row["class"] for row in document["predictions"]}
    assert [*named] == [str(pictures / f"{name}.png") for name in ("1", "2", "new", "renamed")]
    assert before[0].endswith(f": {named[str(pictures / 'renamed.png')]}")
    again = invoke("run", *arguments, "--resume")
    assert asked == [3, 1]
    assert "4 answers were there already" in again.stderr
    assert len(again.stdout.splitlines()) == 4


def test_an_answer_to_a_picture_that_has_changed_is_not_kept(model, pictures, asked, tmp_path):
    """It waited in a queue, say, and its file was written anew before it was read."""
    file, first = tmp_path / "answers.jsonl", pictures / "0.png"
    content, images_of = first.read_bytes(), secure_run.list_images
    arguments = ("run", model, pictures, *SIMULATE, "--answers", file)
    with pytest.MonkeyPatch.context() as patch:

        def change(images):
            Image.fromarray(255 - PIXELS[0]).save(first)
            return images_of(images)

        patch.setattr(secure_run, "list_images", change)
        message = invoke(*arguments, code=2).stderr
    assert f"{first} has changed while the command ran" in message
    first.write_bytes(content)  # what the digest was of
    invoke(*arguments, "--resume")
    assert asked == [3, 1]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--reveal", "logits"), "answers of another reveal"),
        (("--profile", "semi2k-dealer"), "answers of another profile"),
    ],
)
def test_answers_to_something_else_are_not_mixed_in(model, pictures, tmp_path, option, message):
    file = tmp_path / "answers.jsonl"
    invoke("run", model, pictures / "0.png", *SIMULATE, "--answers", file)
    arguments = ("run", model, pictures, *SIMULATE, *option, "--answers", file, "--resume")
    assert message in invoke(*arguments, code=2).stderr


def test_a_model_that_has_changed_is_noticed(pictures, tmp_path):
    from mpcvit.artifacts.record import Reveal
    from mpcvit.secure.answers import ImageAnswer, KnownModel

    def answer(digest):
        model = KnownModel(digest=digest, classes=("cat", "dog"), reveal=Reveal.CLASS)
        return ImageAnswer(model=model, values=None, chosen=(1,), trusted=True, close=False)

    path = tmp_path / "answers.jsonl"
    AnswerFile(path, {}).add("a", pictures / "0.png", answer("then"))
    file = AnswerFile(path, {}, [path])
    assert file.known["a"].likeliest == ("dog",)
    with pytest.raises(UserError, match="the model is another"):
        file.add("b", pictures / "1.png", answer("now"))
    path.write_text(path.read_text().replace("[1]", "[2]"))
    with pytest.raises(UserError, match="line 2 names a class that the model does not have"):
        AnswerFile(path, {}, [path])
    path.write_text("{}")
    with pytest.raises(UserError, match="is not a file of answers"):
        AnswerFile(path, {}, [path])


def test_a_line_of_json_for_each_picture(model, pictures):
    output = invoke("run", model, pictures, *SIMULATE, "--json", "--stream").stdout
    *answers, end = [json.loads(line) for line in output.splitlines()]
    assert [answer["image"] for answer in answers] == [
        str(pictures / f"{index}.png") for index in range(3)
    ]
    assert all(answer["class"] in CHECKPOINT.classes for answer in answers)
    assert end["record"]["transport"] == "simulator"
    refused = invoke("run", model, pictures, *SIMULATE, "--stream", code=2)
    assert "--stream needs --json" in refused.stderr


@pytest.mark.parametrize("option", ["--out", "--answers"])
def test_files_are_checked_before_the_run(model, pictures, asked, tmp_path, option):
    for place, message in (
        (tmp_path, "it is a folder; name a file in it"),
        ("/dev/null", "it is no regular file"),
        ("/proc/record.json", "cannot write into /proc"),
    ):
        refused = invoke("run", model, pictures, *SIMULATE, option, place, code=2)
        assert message in refused.stderr
        assert refused.stdout == ""
    assert asked == []


@pytest.mark.parametrize("option", ["--out", "--answers"])
def test_a_disk_that_fills_up_takes_no_answer(model, pictures, monkeypatch, tmp_path, option):
    file = tmp_path / "file.json"

    def fail(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("mpcvit.storage.os.fsync", fail)
    result = invoke("run", model, pictures, *SIMULATE, option, file, code=2)
    assert [line.split(":")[0] for line in result.stdout.splitlines()[:3]] == [
        str(pictures / f"{index}.png") for index in range(3)
    ]
    assert "total" in result.stdout
    assert "No space left on device" in result.stderr
    assert not file.exists()


def test_a_home_that_cannot_be_written_costs_a_note_and_no_answer(model, pictures, monkeypatch):
    """Nobody asked for the file that --resume reads."""
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/state")
    result = invoke("run", model, pictures, *SIMULATE)
    assert result.stdout.count("class ") >= 3
    assert result.stderr.count("so --resume will not find these answers") == 1


def test_an_answer_that_cannot_be_printed_is_kept(model, pictures, monkeypatch):
    def fail(*_):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(printing, "_print_answer", fail)
        said = invoke("run", model, pictures, *SIMULATE, code=2).stderr
    assert "cannot write the output: No space left on device" in said
    assert "1 of 3 images have an answer" in said
    resumed = invoke("run", model, pictures, *SIMULATE, "--resume")
    assert "1 answer was there already" in resumed.stderr
    assert resumed.stdout.startswith(f"{pictures / '0.png'}: class ")


def test_the_digest_is_of_the_content(pictures, tmp_path):
    copy = tmp_path / "copy.png"
    copy.write_bytes((pictures / "0.png").read_bytes())
    assert digest_of(copy) == digest_of(pictures / "0.png") != digest_of(pictures / "1.png")
    with pytest.raises(UserError, match="cannot read"):
        digest_of(tmp_path / "absent.png")

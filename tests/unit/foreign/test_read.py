"""Opening files and folders, and refusing what is neither."""

import json
import zipfile

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mpcvit.errors import UserError
from mpcvit.foreign import read_foreign


def write_zip(path, pickle: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle)


def test_class_names_may_be_given(golden):
    names = ["a", "b", "c", "d"]
    assert read_foreign(golden / "hf", class_names=names).classes == tuple(names)
    with pytest.raises(UserError, match="has 4 classes, but 3 names were given"):
        read_foreign(golden / "hf", class_names=names[:3])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_wrappers_are_stripped(prefix, golden, tmp_path):
    tensors = load_file(golden / "timm_class" / "model.safetensors")
    save_file({f"{prefix}{name}": array for name, array in tensors.items()}, tmp_path / "x")
    (tmp_path / "x").rename(tmp_path / "wrapped.safetensors")
    assert read_foreign(tmp_path / "wrapped.safetensors", heads=3).model.width == 24


def test_safetensors_are_known_without_their_suffix(golden, tmp_path):
    path = tmp_path / "weights"
    path.write_bytes((golden / "timm_class" / "model.safetensors").read_bytes())
    assert read_foreign(path, heads=3).model.width == 24


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.99])
def test_damaged_safetensors_are_refused(share, golden, tmp_path):
    data = (golden / "hf" / "model.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match="damaged or was cut short"):
        read_foreign(path)


def test_absent_path_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*nothing\.pth: No such file"):
        read_foreign(tmp_path / "nothing.pth")


def test_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"neither model\.safetensors nor pytorch_model\.bin"):
        read_foreign(tmp_path)


def test_an_adapter_is_no_model(tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds an adapter \(LoRA\).*merge_and_unload"):
        read_foreign(tmp_path)


def test_a_pointer_to_weights_is_refused(tmp_path):
    (tmp_path / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"is a pointer of Git LFS .* run `git lfs pull`"):
        read_foreign(tmp_path)


@pytest.mark.parametrize(
    ("index", "report"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"a": "x.safetensors"}}, r"lacks x\.safetensors, which .* lists"),
        ({"weight_map": {"a": "../x.safetensors"}}, "not a file beside it"),
    ],
)
def test_an_index_of_shards_must_name_files_beside_it(index, report, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=report):
        read_foreign(tmp_path)


def test_a_tensor_in_two_shards_is_refused(golden, tmp_path):
    """One of them may be of an older download."""
    tensors = load_file(golden / "hf" / "model.safetensors")
    first, *rest = sorted(tensors)
    save_file(tensors, tmp_path / "1.safetensors")
    save_file({first: 2 * tensors[first]}, tmp_path / "2.safetensors")
    listed = {first: "2.safetensors", **dict.fromkeys(rest, "1.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(UserError, match=rf"2\.safetensors holds {first}, as another file"):
        read_foreign(tmp_path)


@pytest.mark.parametrize(("text", "report"), [("{", "not valid JSON"), ("[1]", "JSON object")])
def test_damaged_configuration_is_refused(text, report, edited):
    folder = edited("hf")
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=report):
        read_foreign(folder)


def test_other_networks_are_refused_by_their_names(tmp_path):
    save_file({"conv1.weight": np.ones(2, np.float32)}, tmp_path / "x.safetensors")
    with pytest.raises(
        UserError, match=r"is not a model that is known; .* its tensors are conv1\.weight$"
    ):
        read_foreign(tmp_path / "x.safetensors")


@pytest.mark.parametrize(
    ("pickle", "report"),
    [
        (b"]N.", "holds no dictionary"),
        (b"}.", "it is empty"),
        (b"}X\x05\x00\x00\x00epochK\x01s.", "these entries are none: epoch"),
        (b"}K\x05K\x01s.", "these entries are none: a int"),
        (b"}X\x0a\x00\x00\x00state_dict}s.", "it is empty"),
        (b"cmodels\nViT\n)R.", r"object of class models\.ViT.*state_dict\(\) instead"),
        (b"K\x05.", "holds no dictionary"),
    ],
)
def test_files_without_tensors_are_refused(pickle, report, tmp_path):
    write_zip(tmp_path / "x.pth", pickle)
    with pytest.raises(UserError, match=report):
        read_foreign(tmp_path / "x.pth")


def test_reading_needs_neither_torch_nor_jax(golden, run_python):
    code = (
        "import sys; from pathlib import Path; from mpcvit.foreign import read_foreign; "
        f"read_foreign(Path({json.dumps(str(golden / 'hf'))})); "
        "print([name for name in ('torch', 'jax', 'flax') if name in sys.modules])"
    )
    assert run_python(code) == "[]\n"

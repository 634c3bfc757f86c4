"""PyTorch's zip files: every kind of tensor, and every kind of damage."""

import contextlib
import math
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpcvit.errors import UserError
from mpcvit.foreign.pickled import InertObject
from mpcvit.foreign.torch_file import open_torch

NUMBERS = np.arange(12, dtype="<f4")


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def numbers(values) -> bytes:
    return b"(" + b"".join(b"I%d\n" % value for value in values) + b"t"


def tensor(shape, strides, offset=0, kind="FloatStorage", key="0", elements=12) -> bytes:
    """The opcodes that torch writes for one tensor."""
    storage = text("storage") + b"ctorch\n" + kind.encode() + b"\n" + text(key) + text("cpu")
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n(("
        + storage
        + b"I%d\ntQI%d\n" % (elements, offset)
        + numbers(shape)
        + numbers(strides)
        + b"\x89}tR"
    )


@pytest.fixture
def write(tmp_path):
    def write(pickle: bytes, members=None, root="archive", compression=zipfile.ZIP_STORED):
        path = tmp_path / "file.pth"
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr(f"{root}/data.pkl", b"\x80\x02" + pickle + b".")
            for name, data in (members or {"data/0": NUMBERS.tobytes()}).items():
                archive.writestr(f"{root}/{name}", data)
        return path

    return write


def load(path):
    """Everything a file holds, with its tensors read."""
    with open_torch(path) as content:
        return content.read() if hasattr(content, "read") else content


def test_tensors_are_those_that_torch_wrote(golden):
    expected = np.load(golden / "tensors.npz")
    with open_torch(golden / "tensors.pt") as content:
        assert set(content) == set(expected.files)
        for name, tensor in content.items():
            array = tensor.read()
            assert tensor.shape == array.shape
            assert array.dtype == expected[name].dtype
            assert tensor.dtype == (name if name == "bfloat16" else array.dtype.name)
            np.testing.assert_array_equal(array, expected[name])


def test_training_checkpoint_keeps_what_is_plain(golden):
    with open_torch(golden / "authors_heads.pth.tar") as content:
        assert (content["epoch"], content["version"]) == (299, 2)
        assert content["amp_scaler"] == {"scale": 65536.0, "growth_factor": 2.0}
        assert content["args"].state["model"] == "vit_7_4_32"
        assert isinstance(content["metric"], InertObject)  # a NumPy scalar
        assert content["optimizer"]["state"][0]["exp_avg"].shape == (15, 3, 2, 2)


@pytest.mark.parametrize("root", ["archive", "mpcvit_cifar10-0.5.pth", "a b"])
def test_root_folder_may_have_any_name(root, write):
    path = write(tensor((3, 4), (4, 1)), root=root)
    np.testing.assert_array_equal(load(path), NUMBERS.reshape(3, 4))


@pytest.mark.parametrize(("order", "code"), [(b"little", "<"), (b"big", ">")])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "bfloat16"])
def test_byte_order_is_followed(order, code, dtype, write):
    if dtype == "bfloat16":
        data = (NUMBERS.view("<u4") >> 16).astype(f"{code}u2")
        kind = "BFloat16Storage"
    else:
        data = NUMBERS.astype(f"{code}{dtype}")
        kind = {"f4": "FloatStorage", "f8": "DoubleStorage", "i8": "LongStorage"}[dtype]
    path = write(tensor((4, 3), (3, 1), kind=kind), {"data/0": data.tobytes(), "byteorder": order})
    np.testing.assert_array_equal(load(path), NUMBERS.reshape(4, 3))


def test_unknown_byte_order_is_refused(write):
    path = write(b"N", {"byteorder": b"middle"})
    with pytest.raises(UserError, match="byte order"):
        load(path)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_views_never_leave_their_storage(write, data):
    axes = data.draw(st.integers(0, 4))
    shape = data.draw(st.tuples(*[st.integers(-1, 5)] * axes))
    strides = data.draw(st.tuples(*[st.integers(-3, 7)] * axes))
    offset = data.draw(st.integers(-2, 14))
    path = write(tensor(shape, strides, offset))
    places = [
        offset + sum(i * step for i, step in zip(index, strides, strict=True))
        for index in np.ndindex(*[max(0, size) for size in shape])
    ]
    fits = all(0 <= place < 12 for place in places)
    if fits and min((offset, *shape, *strides)) >= 0:
        array = load(path)
        assert array.shape == shape
        np.testing.assert_array_equal(array.ravel(), NUMBERS[np.array(places, int)])
    else:
        with pytest.raises(UserError, match="does not fit"):
            load(path)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((), (), 11), ((1,), (50,), 11), ((2, 3), (9, 1), 0), ((3, 0), (50, 1), 11)],
)
def test_views_may_reach_the_last_number_and_no_further(shape, strides, offset, write):
    np.testing.assert_array_equal(
        load(write(tensor(shape, strides, offset))).ravel()[-1:], NUMBERS[11:][: math.prod(shape)]
    )
    if math.prod(shape):
        with pytest.raises(UserError, match="does not fit"):
            load(write(tensor(shape, strides, offset + 1)))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2**30, 2**30), (0, 0)),  # a bomb of one number
        ((2**62, 0), (1, 1)),
        ((1,), (2**62,)),
        ((1,) * 33, (1,) * 33),
    ],
)
def test_absurd_tensors_are_refused(shape, strides, write):
    with pytest.raises(UserError, match="does not fit"):
        load(write(tensor(shape, strides)))


@pytest.mark.parametrize(
    "pickle",
    [
        tensor((3,), (1, 1)),
        tensor((3,), (1,)).replace(b"I3\n", b"N"),
        b"ctorch._utils\n_rebuild_tensor_v2\n)R",
        b"ctorch._utils\n_rebuild_parameter\n)R",
        b"ccollections\nOrderedDict\n(K\x01tR",
        b"K\x05Q",
    ],
)
def test_tensors_without_sense_are_refused(pickle, write):
    with pytest.raises(UserError, match="damaged"):
        load(write(pickle))


def test_shared_storage_is_read_once(write, monkeypatch):
    reads = []
    original = zipfile.ZipFile.read
    monkeypatch.setattr(
        zipfile.ZipFile, "read", lambda self, name: (reads.append(name), original(self, name))[1]
    )
    path = write(b"(" + tensor((3,), (1,)) + tensor((2, 2), (1, 5), 1) + b"l")
    with open_torch(path) as (first, second):
        np.testing.assert_array_equal(first.read(), [0, 1, 2])
        np.testing.assert_array_equal(second.read(), [[1, 6], [2, 7]])
    assert len([name for name in reads if "data/" in name.filename]) == 1


def test_parameters_are_tensors(write):
    path = write(b"ctorch._utils\n_rebuild_parameter\n(" + tensor((2,), (3,)) + b"\x88}tR")
    np.testing.assert_array_equal(load(path), [0, 3])


def test_unknown_storages_become_inert(write):
    path = write(tensor((2,), (1,), kind="QInt8Storage"))
    assert load(path).path == "torch.QInt8Storage"


@pytest.mark.parametrize(("stored", "declared"), [(11, 12), (12, 11), (0, 12), (12, -12)])
def test_storage_of_another_length_is_refused(stored, declared, write):
    path = write(
        tensor((2,), (1,), elements=declared), {"data/0": NUMBERS[:stored].tobytes() or b""}
    )
    with pytest.raises(UserError, match=r"'archive/data/0' has .* bytes"):
        load(path)


def test_missing_storage_is_refused(write):
    with pytest.raises(UserError, match="data/9"):
        load(write(tensor((2,), (1,), key="9")))


def test_compressed_archive_is_refused(write):
    zeros = {"data/0": bytes(2**20)}
    path = write(tensor((1,), (1,)), zeros, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UserError, match="is compressed, which torch"):
        load(path)


@pytest.mark.parametrize("sizes", [(48, 52), (52, 48), (2**31, 2**31)])
def test_sizes_that_cannot_be_are_refused(sizes, write):
    path = write(tensor((1,), (1,)))
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")  # the directory's entry of data/0
    struct.pack_into("<II", data, entry + 20, *sizes)
    path.write_bytes(data)
    with pytest.raises(UserError, match="'archive/data/0' has an impossible size"):
        load(path)


def test_huge_description_is_refused(write):
    with pytest.raises(UserError, match="never read"):
        load(write(b"N0" * 2**23 + b"N"))


def test_changed_byte_is_noticed(write):
    path = write(tensor((3, 4), (4, 1)))
    data = path.read_bytes()
    assert data.count(NUMBERS.tobytes()) == 1
    path.write_bytes(data.replace(NUMBERS.tobytes(), NUMBERS[::-1].tobytes()))
    with pytest.raises(UserError, match=r"damaged.*CRC"):
        load(path)


@pytest.mark.parametrize("share", [0.001, 0.3, 0.9, 0.999])
def test_file_cut_short_is_refused(share, golden, tmp_path):
    data = (golden / "tensors.pt").read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(data[: math.ceil(share * len(data))])
    with pytest.raises(UserError, match=r"cut short|neither a safetensors"):
        load(path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "neither"),
        (b"hello", "neither"),
        (b"\x80\x04N.", "plain pickle"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.more", "old format"),
    ],
)
def test_other_files_are_named(data, reason, tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=reason):
        load(path)


@pytest.mark.parametrize("names", [["data.pkl"], ["a/data.pkl", "b/data.pkl"], ["a/version"]])
def test_other_zip_files_are_refused(names, tmp_path):
    path = tmp_path / "file.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"N.")
    with pytest.raises(UserError, match=r"not one that torch\.save wrote"):
        load(path)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_damage_raises_anything_but_a_user_error(golden, tmp_path, data):
    good = bytearray((golden / "tensors.pt").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "file.pt"
    path.write_bytes(good)
    with contextlib.suppress(UserError), open_torch(path) as content:
        for tensor in content.values() if isinstance(content, dict) else ():
            tensor.read()


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_description_raises_anything_but_a_user_error(write, data):
    good = bytearray(tensor((3, 4), (4, 1)))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UserError):
        load(write(bytes(good)))

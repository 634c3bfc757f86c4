import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from mpcvit.artifacts.config import DataConfig, DataSource
from mpcvit.errors import UserError

CIFAR = DataConfig(source=DataSource.CIFAR_BINARY)
PER_FILE = 3


def records(seed: int, label_bytes: int, classes: int) -> tuple[np.ndarray, np.ndarray, bytes]:
    """Pixels [index, row, column, channel], labels, and the file that holds both."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (PER_FILE, 32, 32, 3), dtype=np.uint8)
    labels = rng.integers(0, classes, PER_FILE, dtype=np.uint8)
    planes = pixels.transpose(0, 3, 1, 2).reshape(PER_FILE, -1)
    coarse = np.full((PER_FILE, label_bytes - 1), 99, np.uint8)
    return pixels, labels, np.concatenate([coarse, labels[:, None], planes], 1).tobytes()


@pytest.fixture
def cifar10(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(records(number, 1, 10)[2])
    (folder / "test_batch.bin").write_bytes(records(0, 1, 10)[2])
    (folder / "batches.meta.txt").write_text("\n".join(f"name{i}" for i in range(10)) + "\n\n")
    return folder


@pytest.fixture
def cifar100(tmp_path: Path) -> Path:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for seed, name in enumerate(("test.bin", "train.bin")):
        (folder / name).write_bytes(records(seed, 2, 100)[2])
    (folder / "fine_label_names.txt").write_text("\n".join(f"name{i}" for i in range(100)))
    return folder


def pack(folder: Path, names: list[str] | None = None) -> Path:
    """Pack in an order that is not the files' own, as the published archives do."""
    path = folder.parent / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in names or sorted((file.name for file in folder.iterdir()), reverse=True):
            archive.add(folder / name, f"{folder.name}/{name}")
    return path


def check_cifar10(dataset) -> None:
    expected = [records(number, 1, 10) for number in range(1, 6)]
    np.testing.assert_array_equal(dataset.train.images, np.concatenate([e[0] for e in expected]))
    np.testing.assert_array_equal(dataset.train.labels, np.concatenate([e[1] for e in expected]))
    np.testing.assert_array_equal(dataset.test.images, records(0, 1, 10)[0])
    assert dataset.classes[9] == "name9"


def test_cifar10_folder_round_trips(cifar10, load):
    check_cifar10(load(cifar10, CIFAR, image_size=32, classes=10))


def test_cifar10_archive_round_trips(cifar10, load):
    check_cifar10(load(pack(cifar10), CIFAR, image_size=32, classes=10))


def test_folder_above_is_enough(cifar10, load):
    check_cifar10(load(cifar10.parent, CIFAR, image_size=32, classes=10))


def test_cifar100_takes_the_fine_label(cifar100, load):
    dataset = load(cifar100, CIFAR, image_size=32, classes=100)
    pixels, labels, _ = records(1, 2, 100)
    np.testing.assert_array_equal(dataset.train.images, pixels)
    np.testing.assert_array_equal(dataset.train.labels, labels)


def test_names_may_be_missing(cifar10, load):
    (cifar10 / "batches.meta.txt").unlink()
    assert load(cifar10, CIFAR, image_size=32, classes=10).classes == tuple("0123456789")


def test_too_few_names_are_refused(cifar10, load):
    (cifar10 / "batches.meta.txt").write_text("cat\ndog\n")
    with pytest.raises(UserError, match=r"batches\.meta\.txt in .* has 2 names, not 10"):
        load(cifar10, CIFAR, image_size=32, classes=10)


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: b""])
def test_wrong_size_is_refused(change, cifar10, load):
    path = cifar10 / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=r"data_batch_3\.bin in .* not a whole number of records"):
        load(cifar10, CIFAR, image_size=32, classes=10)


def test_missing_batch_is_refused(cifar10, load):
    (cifar10 / "data_batch_4.bin").unlink()
    with pytest.raises(UserError, match=r"lacks data_batch_4\.bin"):
        load(cifar10, CIFAR, image_size=32, classes=10)


def test_label_out_of_range_is_refused(cifar10, load):
    data = bytearray((cifar10 / "test_batch.bin").read_bytes())
    data[3073] = 10
    (cifar10 / "test_batch.bin").write_bytes(bytes(data))
    with pytest.raises(
        UserError, match=r"record 1 of test_batch\.bin .* has label 10, outside of 0"
    ):
        load(cifar10, CIFAR, image_size=32, classes=10)


def test_grey_model_is_refused(cifar10, load):
    with pytest.raises(UserError, match=r"record 0 of data_batch_1\.bin .* has 3 channels"):
        load(cifar10, CIFAR, image_size=32, classes=10, channels=1)


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_archive_is_refused(share, cifar10, load):
    path = pack(cifar10)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match=r"archive\.tar\.gz is not a whole tar archive"):
        load(path, CIFAR, image_size=32, classes=10)


@pytest.mark.parametrize("names", [["data_batch_1"], ["train", "meta"]])
@pytest.mark.parametrize("packed", [True, False])
def test_pickles_are_refused_unread(names, packed, tmp_path, load):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"cos\nabort\n(tR.")  # ends the process if it is unpickled
    with pytest.raises(UserError, match="take the binary version"):
        load(pack(folder, names) if packed else folder, DataConfig(), image_size=32, classes=10)


def test_other_archives_are_refused(tmp_path, load):
    folder = tmp_path / "else"
    folder.mkdir()
    (folder / "readme").write_text("hello")
    with pytest.raises(UserError, match="holds no train file of CIFAR-10 or CIFAR-100"):
        load(pack(folder), CIFAR, image_size=32, classes=10)


def test_links_and_escaping_names_write_nothing(cifar10, load, tmp_path):
    path = tmp_path / "evil.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted(cifar10.iterdir()):
            data = file.read_bytes()
            member = tarfile.TarInfo(f"../../{file.name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    check_cifar10(load(path, CIFAR, image_size=32, classes=10))
    after = [each for each in sorted(tmp_path.rglob("*")) if "cache" not in each.parts]
    assert after == before


def test_huge_member_is_refused(tmp_path, load):
    path = tmp_path / "huge.tar"
    member = tarfile.TarInfo("train.bin")
    member.size = 1 << 30
    path.write_bytes(member.tobuf() + bytes(1024))
    with pytest.raises(UserError, match=r"train\.bin in .* has 1,073,741,824 bytes: not CIFAR's"):
        load(path, CIFAR, image_size=32, classes=100)

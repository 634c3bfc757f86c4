import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from mpcvit.data.dataset import ImageSource, Split, cached
from mpcvit.errors import UserError
from mpcvit.storage import cache_folder

COUNT = 521  # more than two chunks
SHAPE = (COUNT, 5, 5, 3)


def undecoded(count: int = COUNT) -> ImageSource:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, *SHAPE[1:]), dtype=np.uint8)
    examples = zip(images, range(count), strict=True)
    return ImageSource(shape=SHAPE, classes=("cat", "dog"), examples=examples)


def silent(_done: int, _total: int) -> None:
    pass


def get(root: Path, decode=undecoded, progress=silent) -> Split:
    return cached(root, "key", decode, progress)


def never() -> ImageSource:
    raise AssertionError("decoded again")


def test_what_is_written_is_read(cache_dir):
    entry = get(cache_dir)
    expected = [image for image, _ in undecoded().examples]
    np.testing.assert_array_equal(entry.images, expected)
    np.testing.assert_array_equal(entry.labels, np.arange(COUNT))
    assert entry.labels.dtype == np.int32
    assert entry.classes == ("cat", "dog")


def test_entry_is_used_again(cache_dir):
    assert get(cache_dir).fingerprint == get(cache_dir, never).fingerprint


def test_progress_ends_at_the_total(cache_dir):
    calls: list[tuple[int, int]] = []
    get(cache_dir, progress=lambda *call: calls.append(call))
    assert calls == [(256, COUNT), (512, COUNT), (COUNT, COUNT)]


@pytest.mark.parametrize("name", ["images.npy", "labels.npy", "meta.json"])
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_damaged_entry_is_made_anew(name, share, cache_dir):
    first = get(cache_dir)
    path = cache_dir / "key" / name
    data = path.read_bytes()
    path.unlink()  # the first entry's map must keep its pages
    path.write_bytes(data[: int(share * len(data))])
    second = get(cache_dir)
    np.testing.assert_array_equal(first.images, second.images)
    assert first.fingerprint == second.fingerprint


def test_failed_decoding_leaves_nothing(cache_dir):
    def fail(done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get(cache_dir, progress=fail)
    assert list(cache_dir.iterdir()) == []


def test_too_few_images_are_refused(cache_dir):
    with pytest.raises(UserError, match="521 images were announced, but 11 came"):
        get(cache_dir, lambda: undecoded(11))
    assert list(cache_dir.iterdir()) == []


def test_two_at_once_agree(cache_dir):
    """Both decode, as neither finds an entry; one is kept, and both see the same."""
    meet = threading.Barrier(2, timeout=30)
    entries: list[Split] = []

    def decode() -> ImageSource:
        meet.wait()
        return undecoded()

    def run() -> None:
        entries.append(get(cache_dir, decode))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entries) == 2
    np.testing.assert_array_equal(entries[0].images, entries[1].images)
    assert [path.name for path in cache_dir.iterdir()] == ["key"]


def test_the_second_of_two_throws_its_copy_away(cache_dir):
    def decode() -> ImageSource:
        get(cache_dir)
        inodes.append((cache_dir / "key" / "images.npy").stat().st_ino)
        return undecoded()

    inodes: list[int] = []
    get(cache_dir, decode)
    assert inodes == [(cache_dir / "key" / "images.npy").stat().st_ino]


def test_unwritable_folder_names_the_variable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="set MPCVIT_CACHE to keep decoded images elsewhere"):
        get(tmp_path / "file" / "cache")


def test_full_disk_names_the_variable(cache_dir, monkeypatch):
    usage = shutil.disk_usage(cache_dir.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage._replace(free=100))
    with pytest.raises(UserError, match=r"are needed; .*MPCVIT_CACHE"):
        get(cache_dir)


def test_disk_that_fills_up_names_the_variable(cache_dir, monkeypatch):
    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mpcvit.data.dataset.os.fsync", fail)
    with pytest.raises(UserError, match="No space left on device; set MPCVIT_CACHE"):
        get(cache_dir)
    assert list(cache_dir.iterdir()) == []


def test_variable_moves_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MPCVIT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("MPCVIT_CACHE")
    monkeypatch.setenv("HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/.cache/mpcvit/data")

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpcvit.artifacts.config import DataConfig, DataSource
from mpcvit.data import load_split
from mpcvit.errors import UserError

PARQUET = DataConfig(source=DataSource.PARQUET)
NAMES = ("cat", "dog")


@pytest.fixture
def write(tmp_path: Path, random_pixels, encode) -> Callable[..., Path]:
    """Write one parquet file as the hub would; `seeds` say which random pictures it holds."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def writer(
        name: str,
        seeds: range,
        labels: list[Any],
        *,
        image: str = "img",
        label: str = "label",
        names: Any = NAMES,
        pictures: dict[int, bytes | None] | None = None,
    ) -> Path:
        cells = [
            {"bytes": (pictures or {}).get(seed, encode(random_pixels(seed))), "path": None}
            for seed in seeds
        ]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        table = pa.table({image: pa.array(cells, kind), label: labels, "coarse_label": labels})
        if names is not None:
            features = {label: {"names": names, "_type": "ClassLabel"}}
            metadata = {"huggingface": json.dumps({"info": {"features": features}})}
            table = table.replace_schema_metadata(metadata)
        path = tmp_path / "hub" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=2)
        return path

    return writer


@pytest.fixture
def hub(write, tmp_path: Path) -> Path:
    write("plain/train-00000-of-00002.parquet", range(3), [0, 1, 0])
    write("plain/train-00001-of-00002.parquet", range(3, 5), [1, 1])
    write("plain/test-00000-of-00001.parquet", range(5, 7), [1, 0])
    return tmp_path / "hub"


def test_round_trip(hub, load, random_pixels):
    dataset = load(hub, PARQUET)
    assert dataset.classes == NAMES
    assert dataset.train.labels.tolist() == [0, 1, 0, 1, 1]
    np.testing.assert_array_equal(
        dataset.train.images, np.stack([random_pixels(seed) for seed in range(5)])
    )
    np.testing.assert_array_equal(
        dataset.test.images, np.stack([random_pixels(seed) for seed in (5, 6)])
    )


def test_cifar100_columns(write, load, tmp_path):
    for name in ("train-0.parquet", "test-0.parquet"):
        write(name, range(2), [1, 0], image="image", label="fine_label")
    assert load(tmp_path / "hub", PARQUET).train.labels.tolist() == [1, 0]


@pytest.mark.parametrize("prefix", ["valid", "validation"])
def test_validation_serves_as_test(prefix, hub, load):
    test = hub / "plain" / "test-00000-of-00001.parquet"
    test.rename(hub / "plain" / f"{prefix}-00000-of-00001.parquet")
    assert load(hub, PARQUET).test.labels.tolist() == [1, 0]


def test_test_beats_validation(hub, write, load):
    write("plain/validation-00000-of-00001.parquet", range(8, 9), [1])
    assert len(load(hub, PARQUET).test) == 2


def test_unnamed_classes_are_numbered_over_both_splits(write, load, tmp_path):
    write("train-0.parquet", range(2), [0, 1], names=None)
    write("test-0.parquet", range(2), [2, 0], names=None)
    assert load(tmp_path / "hub", PARQUET, classes=3).classes == ("0", "1", "2")
    with pytest.raises(UserError, match="has 3 classes, but the model has 5"):
        load(tmp_path / "hub", PARQUET, classes=5)


def test_test_split_alone_is_enough(write, cache_dir, tmp_path):
    write("test-0.parquet", range(2), [1, 0])
    config = DataConfig(path=str(tmp_path / "hub"))
    sizes = {"image_size": 7, "channels": 3, "classes": 2}
    assert len(load_split(config, "test", **sizes)) == 2
    with pytest.raises(UserError, match="no parquet file whose name begins with train-"):
        load_split(config, "train", **sizes)


def test_differing_class_names_are_refused(hub, write, load):
    write("plain/test-00000-of-00001.parquet", range(2), [0, 1], names=("dog", "cat"))
    with pytest.raises(UserError, match="different class names"):
        load(hub, PARQUET)


def test_missing_shard_is_refused(hub, load):
    (hub / "plain" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(UserError, match="holds 1 train files, but train-00000-of-00002"):
        load(hub, PARQUET)


def test_several_configurations_are_refused(hub, write, load):
    write("other/train-00000-of-00001.parquet", range(2), [0, 1])
    with pytest.raises(UserError, match=r"train files in several folders; set data\.path to"):
        load(hub, PARQUET)


@pytest.mark.parametrize("share", [0.0, 0.4, 0.95])
def test_truncated_file_is_named(share, hub, load):
    path = hub / "plain" / "train-00001-of-00002.parquet"
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UserError, match=r"train-00001-of-00002\.parquet cannot be read as parquet"):
        load(hub, PARQUET)


def test_damaged_page_is_named(hub, load):
    path = hub / "plain" / "train-00001-of-00002.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"train-00001-of-00002\.parquet cannot be read as parquet"):
        load(hub, PARQUET)


def test_corrupt_picture_is_named_by_row(hub, write, load, random_pixels, encode):
    whole = encode(random_pixels(4), "JPEG")
    broken = {4: whole[: len(whole) // 2]}
    write("plain/train-00001-of-00002.parquet", range(3, 5), [1, 1], pictures=broken)
    with pytest.raises(UserError, match=r"row 1 of .*train-00001-of-00002\.parquet cannot be read"):
        load(hub, PARQUET)


def test_row_without_bytes_is_named(hub, write, load):
    write("plain/train-00001-of-00002.parquet", range(3, 5), [1, 1], pictures={3: None})
    with pytest.raises(UserError, match=r"row 0 of .*parquet holds no image bytes"):
        load(hub, PARQUET)


@pytest.mark.parametrize(
    ("labels", "said"),
    [([1, -1], "row 1 .* label -1, outside"), ([2, 1], "row 0 .* label 2, outside")],
)
def test_label_out_of_range_is_refused(labels, said, hub, write, load):
    write("plain/test-00000-of-00001.parquet", range(2), labels)
    with pytest.raises(UserError, match=said):
        load(hub, PARQUET)


@pytest.mark.parametrize("labels", [["a", "b"], [None, None], [0.5, 1.0]])
def test_label_that_is_no_number_is_refused(labels, hub, write, load):
    write("plain/test-00000-of-00001.parquet", range(2), labels)
    with pytest.raises(UserError, match="which is not a whole number"):
        load(hub, PARQUET)


@pytest.mark.parametrize(("column", "said"), [("image", "pixels"), ("label", "target")])
def test_missing_column_is_refused(column, said, hub, write, load):
    names: dict[str, Any] = {column: said}
    write("plain/test-00000-of-00001.parquet", range(2), [0, 1], **names)
    with pytest.raises(UserError, match=f"has no {column} column: looked for .* {said}"):
        load(hub, PARQUET)


def test_split_without_rows_is_refused(hub, write, load):
    write("plain/test-00000-of-00001.parquet", range(0), [])
    with pytest.raises(UserError, match="has no test images"):
        load(hub, PARQUET)


@pytest.mark.parametrize("names", ["cat", 3, {"cat": 0}])
def test_odd_metadata_falls_back_to_numbers(names, write, load, tmp_path):
    for name in ("train-0.parquet", "test-0.parquet"):
        write(name, range(2), [0, 1], names=names)
    assert load(tmp_path / "hub", PARQUET).classes == ("0", "1")


def test_folder_without_parquet_is_refused(tmp_path, load):
    (tmp_path / "hub").mkdir()
    with pytest.raises(UserError, match="holds no data set: looked for parquet files"):
        load(tmp_path / "hub", PARQUET)


def test_unusable_pyarrow_is_explained(tmp_path, load, monkeypatch):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train-0.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"needs pyarrow; run pip install 'mpcvit\[train\]'"):
        load(tmp_path / "hub", PARQUET)

"""Where images come from: one module per layout on disk."""

from pathlib import Path

from mpcvit.artifacts.config import DataConfig, DataSource
from mpcvit.data.sources.base import Example, Examples, Source, SplitName
from mpcvit.data.sources.cifar import CifarSource
from mpcvit.data.sources.digits import DigitsSource
from mpcvit.data.sources.folder import FolderSource, holds_pictures
from mpcvit.data.sources.parquet import ParquetSource
from mpcvit.errors import UserError

# the order of `auto`: the layouts with the most particular names come first
_ON_DISK = {
    DataSource.CIFAR_BINARY: CifarSource,
    DataSource.PARQUET: ParquetSource,
    DataSource.FOLDER: FolderSource,
}
_LOOKED_FOR = {
    DataSource.CIFAR_BINARY: "CIFAR's binary archive or its .bin files",
    DataSource.PARQUET: "parquet files named train-*, test-* or valid*-*",
    DataSource.FOLDER: "folders train/<class>/ and test/<class>/ (or val/, validation/)",
}


def find_source(config: DataConfig) -> Source:
    """Recognise what lies at `data.path`, or check that it is what was named."""
    if config.source is DataSource.DIGITS:
        return DigitsSource()
    if not config.path:
        raise UserError(
            "no data set is named: add --data with its folder, or set data.source = 'digits'"
        )
    root = Path(config.path).expanduser()
    if not root.exists():
        raise UserError(f"data.path names {root}, which does not exist")
    kinds = list(_ON_DISK) if config.source is DataSource.AUTO else [config.source]
    for kind in kinds:
        if _ON_DISK[kind].fits(root):
            return _ON_DISK[kind](root)
    looked_for = "; ".join(_LOOKED_FOR[kind] for kind in kinds)
    if holds_pictures(root):
        raise UserError(
            f"{root} holds pictures without labels, but training and evaluation need them: "
            "sort the pictures into train/<class>/ and test/<class>/"
        )
    raise UserError(f"{root} holds no data set: looked for {looked_for}")

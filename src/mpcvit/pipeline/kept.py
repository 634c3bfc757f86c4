"""What a step made is kept beside a mark of what it was made from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpcvit.records import content_digest
from mpcvit.storage import write_text


def make_once(path: Path, made_from: Mapping[str, Any], make: Callable[[], None]) -> bool:
    """Make a file or folder, unless it is there and was made from the very same.

    Says whether it was there. The mark is written last, so that what a stopped
    step left is made again.
    """
    mark = path.with_name(f"{path.name}.made-from")
    digest = content_digest(made_from)
    if path.exists() and mark.exists() and mark.read_text("utf-8").strip() == digest:
        return True
    mark.unlink(missing_ok=True)
    make()
    write_text(mark, digest + "\n")
    return False

"""What a step made is kept beside a mark of what it was made from."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpcvit.artifacts.provenance import content_digest
from mpcvit.errors import UserError
from mpcvit.storage import write_text


def make_once(
    path: Path,
    made_from: Mapping[str, Any],
    make: Callable[[], None],
    load: Callable[[Path], object] = Path.exists,
) -> bool:
    """Make a file or folder, unless it is there and was made from the very same.

    Says whether it was there. The mark is written last, so that what a stopped
    step left is made again; and so is what `load` refuses.
    """
    mark = path.with_name(f"{path.name}.made-from")
    digest = content_digest(made_from)
    if path.exists() and mark.exists() and mark.read_text("utf-8").strip() == digest:
        try:
            load(path)
            return True
        except UserError:
            pass  # damaged, or of another version
    mark.unlink(missing_ok=True)
    make()
    write_text(mark, digest + "\n")
    return False

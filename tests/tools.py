"""Scripts of the folder `tools/`, which is no package."""

import importlib.util
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def load_tool(name):
    if str(TOOLS) not in sys.path:  # as for a script, which finds what lies beside it
        sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool

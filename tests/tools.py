"""Scripts of the folder `tools/`, which is no package."""

import importlib.util
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def load_tool(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool

"""Checkpoints of other projects, read into this project's parameters."""

from mpcvit.foreign.model import ForeignModel
from mpcvit.foreign.read import read_foreign

__all__ = ["ForeignModel", "read_foreign"]

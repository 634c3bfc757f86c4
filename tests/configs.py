"""The configurations of this repository."""

from pathlib import Path

CONFIGS = Path(__file__).parents[1] / "configs"
TINY = CONFIGS / "digits-tiny.toml"

"""The configurations of the package."""

from mpcvit.artifacts.shipped import CONFIGS

TINY = CONFIGS / "digits-tiny.toml"
FINE_TUNING = CONFIGS / "finetune.toml"  # the model that --from names completes it
COMPLETE = [path for path in sorted(CONFIGS.glob("*.toml")) if path != FINE_TUNING]

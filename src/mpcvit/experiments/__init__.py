"""The paper's tables and figures, each run end to end at the scale of a configuration."""

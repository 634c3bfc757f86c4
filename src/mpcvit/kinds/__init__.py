"""The plain half of attention kinds: a row each, and what operations cost."""

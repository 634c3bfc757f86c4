"""The script beside this file needs PyTorch, which the tests do not have."""

collect_ignore = ["make.py"]

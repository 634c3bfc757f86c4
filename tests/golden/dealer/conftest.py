"""The script behind the vectors needs SPU, and is no test."""

collect_ignore = ["make.py"]

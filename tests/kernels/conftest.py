"""Triton's interpreter for the tests of this folder, which are collected where triton is installed."""

import importlib.util
import os

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

"""Triton's interpreter for the tests of this folder, which are collected where triton is installed."""

import importlib.util
import os

import pytest

if importlib.util.find_spec("triton") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported


@pytest.fixture
def tiles(monkeypatch):
    """Tiles of a row or two, in several launches."""
    from nclib.ot import kernels

    monkeypatch.setattr(kernels, "TILE_ENTRIES", 16)
    monkeypatch.setattr(kernels, "SCRATCH_ENTRIES", 700)

"""Shared by all tests: one thread, and marks by folder.

One thread takes all sums in one order, and small products gain nothing from more.
"""

import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: its factorisations depend on the threads

import matplotlib
import pytest
import torch

torch.set_num_threads(1)
HERE = Path(__file__).parent
MARKS = {"notebooks": ("notebook", "slow"), "book/test_grid.py": ("grid", "slow")}


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """Matplotlib's style as it was before the test, so that no test draws in that of another."""
    with matplotlib.rc_context():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some folders and files."""
    for item in items:
        place = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        for start, names in MARKS.items():
            if place.startswith(start):
                for name in names:
                    item.add_marker(name)

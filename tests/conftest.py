"""Shared by all tests: one thread, marks by folder, and how many cases hypothesis draws.

One thread takes all sums in one order, and small products gain nothing from more.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: its factorisations depend on the threads

import hypothesis
import matplotlib
import pytest
import registered  # noqa: F401  before test files, which may import further models
import torch
from hypothesis import HealthCheck, Phase

torch.set_num_threads(1)
HERE = Path(__file__).parent
MARKS = {"notebooks": ("notebook", "slow"), "book/test_grid.py": ("grid", "slow")}

# As a test, a property is tried on the same few cases each time; `make fuzz` draws many others.
hypothesis.settings.register_profile(
    "tests", max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
hypothesis.settings.register_profile(
    "fuzz",
    hypothesis.settings.get_profile("tests"),
    max_examples=300,
    derandomize=False,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)
hypothesis.settings.load_profile("tests")


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    """Matplotlib's style as it was before the test, so that no test draws in that of another."""
    with matplotlib.rc_context():
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some folders and files, and those of properties: these are ``make fuzz``."""
    for item in items:
        if hypothesis.is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("fuzz")
        place = item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else ""
        for start, names in MARKS.items():
            if place.startswith(start):
                for name in names:
                    item.add_marker(name)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the commands that draw the cases of failed properties again, in ``make fuzz``."""
    if config.getoption("--hypothesis-profile") == "fuzz":
        seed, failed = config.getoption("--hypothesis-seed"), terminalreporter.stats.get("failed", [])
        for name in dict.fromkeys(report.nodeid.rpartition("::")[2].partition("[")[0] for report in failed):
            terminalreporter.write_line(f"Again: make fuzz MINUTES=0 SEED={seed} ONLY={name}")

"""Examples in docstrings run as they are printed."""

import doctest
import importlib

import pytest

MODULES = (
    "nclib.common.files",
    "nclib.common.options",
    "nclib.runs",
    "nclib.runs.machine",
    "nclib.runs.options",
    "nclib.runs.words",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0

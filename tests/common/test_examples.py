"""Examples in docstrings of the data and of their ground run as they stand."""

import doctest
import importlib

import pytest

MODULES = ("nclib.common.files",)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0

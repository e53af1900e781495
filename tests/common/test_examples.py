"""Examples in docstrings of the data and of their ground run as they stand."""

import doctest
import importlib

import pytest

MODULES = (
    "nclib.common.files",
    "nclib.common.prefetch",
    "nclib.data.categories",
    "nclib.data.dataset",
    "nclib.data.registry",
    "nclib.data.rows",
    "nclib.data.tokeniser",
    "nclib.data.vocabulary",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0

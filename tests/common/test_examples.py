"""Examples in docstrings run as they are printed."""

import doctest
import importlib

import pytest

MODULES = (
    "nclib.common.files",
    "nclib.common.options",
    "nclib.common.prefetch",
    "nclib.data.categories",
    "nclib.data.dataset",
    "nclib.data.registry",
    "nclib.data.rows",
    "nclib.data.tokeniser",
    "nclib.data.vocabulary",
    "nclib.label_noise",
    "nclib.label_noise.base",
    "nclib.methods",
    "nclib.methods.base",
    "nclib.runs",
    "nclib.runs.machine",
    "nclib.runs.options",
    "nclib.runs.words",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0

"""Examples in docstrings of the models run as they stand."""

import doctest
import importlib

import pytest

MODULES = ("base", "clip", "omit", "options", "registry", "sgraf")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"nclib.models.{name}"))
    assert result.attempted > 0
    assert result.failed == 0

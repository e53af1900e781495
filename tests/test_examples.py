"""Examples in docstrings run and print what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

import nclib

ROOT = Path(nclib.__file__).parents[1]
PACKAGES = {"nclib": ROOT / "nclib", "ncbook": ROOT / "book" / "ncbook"}
MODULES = sorted(
    ".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
    for package, folder in PACKAGES.items()
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text("utf8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    result = doctest.testmod(importlib.import_module(name), optionflags=options)
    assert result.attempted > 0
    assert result.failed == 0

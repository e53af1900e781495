"""Cells of a notebook, executed here: tests look at the variables that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def cells(name: str, *ids: str, **given: Any) -> dict[str, Any]:
    """Execute the parameters, the set-up and the named cells of a notebook, and return what they define."""
    found = {c.id: c.source for c in nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4).cells}
    made: dict[str, Any] = {}
    exec(found["parameters"], made)
    made |= given
    for cell in ("setup" if "setup" in found else "check", *ids):
        exec(found[cell], made)
    return made

"""Small notebooks for the tests of the book's tools."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat


def notebook(*sources: str) -> Any:
    """Return a notebook of code cells; a source that starts with ``#`` and a space becomes prose."""
    cells = [
        nbformat.v4.new_markdown_cell(s) if s.startswith(("# ", "## ")) else nbformat.v4.new_code_cell(s)
        for s in sources
    ]
    for number, cell in enumerate(cells):
        cell.id = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def executed(nb: Any, text: str = "output") -> Any:
    """Return a copy in which every code cell has run and printed ``text`` with its number."""
    done = copy.deepcopy(nb)
    code = [c for c in done.cells if c.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{text} {number}\n")]
    return done


def build(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Build the pages of a folder into ``html`` below it."""
    command = [sys.executable, "-m", "sphinx", "-q", *words, "-b", "html", ".", "html"]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=120)

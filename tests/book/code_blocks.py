"""The code blocks and commands of a page, for tests that run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

BLOCK = re.compile(r"^```\{code-block\} (\w+)\n((?::\w+:[^\n]*\n)*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One named block of code."""

    language: str
    caption: str
    code: str


def blocks(page: Path) -> dict[str, Block]:
    """Return the named blocks of a page, in its order."""
    found: dict[str, Block] = {}
    for language, head, code in BLOCK.findall(page.read_text("utf8")):
        options = dict(re.findall(r"^:(\w+): (.*)$", head, re.MULTILINE))
        assert options["name"] not in found, f"{page.name}: two blocks are called {options['name']}"
        found[options["name"]] = Block(language, options.get("caption", ""), code)
    return found


def commands(page: Path) -> list[str]:
    """Return the commands of a page or a notebook: lines behind a prompt, their comments cut off."""
    prose = page.read_text("utf8")
    if page.suffix == ".ipynb":
        prose = "\n".join(
            cell.source for cell in nbformat.reads(prose, 4).cells if cell.cell_type == "markdown"
        )
    lines = [line for text in CONSOLE.findall(prose) for line in text.splitlines()]
    assert all(line.startswith("$ ") for line in lines), f"{page.name}: a command without a prompt"
    return [line[2:].split("   #")[0].strip() for line in lines]


def run(script: str, folder: Path, path: Path) -> str:
    """Run a script in a fresh process with ``path`` before everything installed; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout

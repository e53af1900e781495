"""Check a submitted assignment: ``python book/teaching/check.py assignment_1.ipynb --seed 7``.

The notebook is executed from its first to its last cell in a process of its own; then each question is asked
with data that the seed draws, so that a new seed asks with other numbers. The exit code is 0 where every
point was reached. The notebook runs with the rights of whoever checks it: check strangers' work in a
container.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import pathlib
import subprocess
import sys

import nbformat


def points(path: pathlib.Path, seed: int) -> tuple[int, int]:
    """Execute a submission, print a line a question, and return the points reached and those that can be."""
    from checks import ASSIGNMENTS

    page = nbformat.read(path, 4)
    name = str(page.metadata.get("assignment"))
    if name not in ASSIGNMENTS:
        raise SystemExit(
            f"{path.name}: not one of the assignments ({', '.join(ASSIGNMENTS)}); start from its notebook"
        )
    given: dict[str, object] = {}
    for cell in page.cells:
        if cell.cell_type == "code":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(cell.source, f"cell {cell.id}", "exec"), given)  # what the checker is for
    reached = total = 0
    for check in ASSIGNMENTS[name](given, seed):
        try:
            holds, why = check.holds(), ""
        except Exception as error:  # whatever a submission does wrong costs its points only
            holds, why = False, f" ({type(error).__name__}: {error})"
        got = check.points if holds else 0
        print(f"{got} of {check.points}  {check.asks}{why}", flush=True)
        reached, total = reached + got, total + check.points
    return reached, total


def main(words: list[str] | None = None) -> int:
    """Check the submissions that are named; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebook", type=pathlib.Path, nargs="+", help="the submitted notebooks")
    parser.add_argument("--seed", type=int, default=0, help="draws the data of the questions")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one notebook")
    asked = parser.parse_args(words)
    if missing := [str(path) for path in asked.notebook if not path.is_file()]:
        parser.error(f"no such notebook: {', '.join(missing)}")
    if len(asked.notebook) == 1 and asked.limit < 0:  # the process of one notebook
        reached, total = points(asked.notebook[0], asked.seed)
        print(f"{asked.notebook[0].name}: {reached} of {total} points")
        return int(reached < total)
    codes = []
    for path in asked.notebook:
        call = [sys.executable, __file__, str(path), "--seed", str(asked.seed), "--limit=-1"]
        try:
            codes.append(subprocess.run(call, timeout=asked.limit, check=False).returncode)
        except subprocess.TimeoutExpired:
            print(f"{path.name}: not done after {asked.limit:g} seconds; 0 points")
            codes.append(1)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

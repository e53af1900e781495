"""Try the wheel alone, with the newest versions that it allows, on every Python that is given or found.

    make versions                               # python3.11, python3.12 and python3.13, where they start
    make versions PYTHONS="python3.12 /opt/python3.13/bin/python"

Each Python gets an empty environment in a temporary folder, away from the repository: the wheel with its
extra ``train`` and the newest versions of what both require, then README's example, then tests, in which
warnings are errors. Prints a table; fails when something fails. torch alone takes up to 3 GB.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MINORS = ("3.11", "3.12", "3.13")
SOURCES = ("nclib", "pyproject.toml", "README.md", "LICENSE", "tests")  # tests of the wheel, as it is built
# Tests that need nothing of the repository but the package and their own folder.
TESTS = ("ot", "noise", "test_losses.py", "test_evaluation.py", "runs/test_loop.py")
OF_TESTS = ("pytest", "hypothesis", "pyarrow", "transformers")
VERSIONS = """
import sys
from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in sys.argv[1:]))
"""
SHOWN = 25  # lines of a failed command


class FailedError(Exception):
    """A command that failed; the text is the end of its output."""


def run(*words: str | Path, at: Path) -> str:
    """Run a command in a folder, with nothing of the repository in its environment; return its output."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    own = {"OMP_NUM_THREADS": "1", "NCLIB_CACHE": str(at / "cache"), "MPLBACKEND": "agg"}
    command = [str(word) for word in words]
    done = subprocess.run(
        command, cwd=at, env={**clean, **own}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode:
        raise FailedError("\n".join(done.stdout.splitlines()[-SHOWN:]))
    return done.stdout.strip()


def pythons() -> list[str]:
    """Return the commands of the supported Pythons that start here."""
    found = [shutil.which(f"python{minor}") for minor in MINORS]
    return [p for p in found if p and not subprocess.run([p, "-c", ""], capture_output=True).returncode]


def example() -> str:
    """Return the example of README's third door."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf8"), re.DOTALL)
    (found,) = [block for block in blocks if "nclib.run(" in block]
    return str(found)


def requirements() -> list[str]:
    """Return the names of the packages that the wheel requires, and those of its extra ``train``."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["train"][1:]]
    return [re.split(r"[^\w-]", text)[0] for text in wanted]


def wheel(folder: Path) -> Path:
    """Build the wheel from a copy of its sources."""
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    how = ("-q", "--no-deps", "--no-build-isolation")  # setuptools is that of this environment
    run(sys.executable, "-m", "pip", "wheel", *how, "-w", folder, source, at=folder)
    (found,) = folder.glob("*.whl")
    return found


def tried(python: str, built: Path, folder: Path) -> list[str]:
    """Return a row of the table: Python, example, tests, versions."""
    row = [run(python, "-c", "import platform; print(platform.python_version())", at=folder)]
    own = folder / "venv/bin/python"
    newest = ("--no-cache-dir", "--upgrade", "--upgrade-strategy", "eager")
    install = (own, "-m", "pip", "install", "-q", *newest)
    try:
        run(python, "-m", "venv", "venv", at=folder)
        run(*install, f"{built}[train]", at=folder)
        (folder / "door.py").write_text(example(), "utf8")
        run(own, "-W", "error", "door.py", at=folder)
        row.append("runs")
        run(*install, *OF_TESTS, at=folder)
        shutil.copytree(built.parent / "source/tests", folder / "tests")
        shutil.copy(built.parent / "source/pyproject.toml", folder)
        said = run(own, "-m", "pytest", "-m", "not slow", *(f"tests/{name}" for name in TESTS), at=folder)
        row.append(said.splitlines()[-1].partition(" in ")[0])
    except FailedError as error:
        print(f"\nPython {row[0]}:\n{error}\n", file=sys.stderr)
        row += ["fails"] * (3 - len(row))
    try:
        row.append(run(own, "-c", VERSIONS, *requirements(), at=folder))
    except (FailedError, OSError):
        row.append("not installed")
    return row


def main(words: list[str]) -> int:
    """Print a row per Python; return 0 when everything runs."""
    chosen = words or pythons()
    if not chosen:
        print(f"there is no Python {', '.join(MINORS)} on the path; give their paths", file=sys.stderr)
        return 2
    print("| Python | example | tests | versions |\n|---|---|---|---|")
    failed = False
    with tempfile.TemporaryDirectory() as place:
        built = wheel(Path(place))
        for python in chosen:
            with tempfile.TemporaryDirectory() as folder:
                row = tried(python, built, Path(folder))
            print(f"| {' | '.join(row)} |", flush=True)
            failed |= "fails" in row
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

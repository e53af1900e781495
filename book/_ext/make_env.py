"""Make the virtual environment of the book from book/requirements.lock: ``make_env.py .venv``.

A second call with the same lock file, project files and place installs nothing. Standard library only,
since it runs on the bare interpreter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCK = ROOT / "book" / "requirements.lock"
PROJECTS = (ROOT, ROOT / "book")
NOTE = "nclib-environment.json"
MINE = "Work in a copy of your own, or name another folder: make VENV=folder"


def key(venv: pathlib.Path) -> str:
    """Return a digest of lock file, project files and place; installed paths are absolute."""
    parts = [LOCK.read_bytes(), *((p / "pyproject.toml").read_bytes() for p in PROJECTS), str(venv).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_note(venv: pathlib.Path) -> dict[str, str]:
    """Return key and place of the last complete installation, if any."""
    try:
        return dict(json.loads((venv / NOTE).read_text("utf8")))
    except (OSError, ValueError):
        return {}


def make(venv: pathlib.Path) -> None:
    """Install the locked packages and this project into ``venv``, unless that is done already."""
    venv = venv.resolve()
    note, want = read_note(venv), key(venv)
    python = venv / "bin" / "python"
    if note.get("key") == want and python.exists():
        return
    begun = time.monotonic()
    try:
        if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
            sys.exit(f"{venv} is not a virtual environment; move it away or name another: make VENV=folder")
        venv.mkdir(parents=True, exist_ok=True)
        for folder in (venv, *PROJECTS):  # an editable installation writes into the folder of its project
            tempfile.TemporaryFile(dir=folder).close()
        (venv / NOTE).unlink(missing_ok=True)
    except OSError as error:
        sys.exit(f"{error}: this folder cannot be written, it may be another user's. {MINE}")
    if note.get("place") != str(venv) or not python.exists():
        print(f"Creating {venv} with Python {sys.version.split()[0]}", flush=True)
        if subprocess.call([sys.executable, "-m", "venv", "--clear", str(venv)]):
            lacks = importlib.util.find_spec("ensurepip") is None
            why = "on Debian and Ubuntu: apt install python3-venv" if lacks else "the lines above say why"
            sys.exit(f"No virtual environment could be made; {why}")
    print("Installing the pinned packages (1.8 GB on disk, about two minutes) ...", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    editable = [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable"]
    steps = [
        [*pip, "install", *quiet, "--requirement", str(LOCK)],
        *([*editable, str(project)] for project in PROJECTS),
        [*pip, "check"],
    ]
    for step in steps:
        if subprocess.call(step):
            sys.exit(f"Installing stopped at: {' '.join(step)}\nRun the same make command again to continue.")
    (venv / NOTE).write_text(json.dumps({"key": want, "place": str(venv)}), "utf8")
    print(f"Environment ready in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv"))

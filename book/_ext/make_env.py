"""Make the virtual environment of the book from book/requirements.lock: ``make_env.py .venv``.

Each file must have a digest that the lock lists. A second call with the same lock files, project files
and place installs nothing. ``make_env.py --active`` installs into the environment of the Python that runs it,
such as conda's; a torch of the right version that is there stays. Standard library only: it runs on the bare
interpreter.
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
CPU = ROOT / "book" / "cpu.lock"  # a smaller build of torch, where an index or a folder of wheels has it
CUDA = ROOT / "book" / "cuda.lock"  # libraries that the other builds need
PROJECTS = (ROOT, ROOT / "book")
NOTE = "nclib-environment.json"
MINE = "Work in a copy of your own, or name another folder: make VENV=folder"
HAS_TORCH = "from importlib.metadata import version; version('torch')"
NEEDS_CUDA = (
    "import sys; from importlib.metadata import requires; sys.platform == 'linux' or sys.exit(1); "
    "sys.exit(not any(r.startswith('nvidia') for r in requires('torch') or ()))"
)
OTHER_FILE = (
    "Where pip says that a hash does not match, its index serves another file than those that the lock "
    "lists: take another index, or read 'Files and their digests' in book/howto/quick_start.md."
)


def key(venv: pathlib.Path) -> str:
    """Return a digest of lock files, project files and place; installed paths are absolute."""
    files = (LOCK, CPU, CUDA, *(p / "pyproject.toml" for p in PROJECTS))
    return hashlib.sha256(b"\0".join([*(f.read_bytes() for f in files), str(venv).encode()])).hexdigest()


def read_note(venv: pathlib.Path) -> dict[str, str]:
    """Return key and place of the last complete installation, if any."""
    try:
        return dict(json.loads((venv / NOTE).read_text("utf8")))
    except (OSError, ValueError):
        return {}


def install(python: str) -> None:
    """Install the locked packages and this project into the environment of an interpreter."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    # Bytecode of all packages is half of the work; Python makes that of what is imported.
    new = [*pip, "install", *quiet, "--no-compile"]
    locked = [*new, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r"]
    editable = [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable"]
    quietly = {"stderr": subprocess.DEVNULL}
    has_torch = not subprocess.call([python, "-c", HAS_TORCH], **quietly)
    if not has_torch and subprocess.call([*locked, str(CPU)], **quietly):
        print(
            "No build of torch for CPUs with a known digest is at hand; taking that of the index.", flush=True
        )
    _run([*locked, str(LOCK)])
    if not subprocess.call([python, "-c", NEEDS_CUDA]):
        _run([*locked, str(CUDA)])
    for project in PROJECTS:
        _run([*editable, str(project)])
    _run([*pip, "check"])


def _run(step: list[str]) -> None:
    if subprocess.call(step):
        said = OTHER_FILE + "\n" if "--require-hashes" in step else ""
        sys.exit(
            f"Installing stopped at: {' '.join(step)}\n{said}Run the same make command again to continue."
        )


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
    install(str(python))
    (venv / NOTE).write_text(json.dumps({"key": want, "place": str(venv)}), "utf8")
    print(f"Environment ready in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--active"]:
        install(sys.executable)
    else:
        make(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv"))

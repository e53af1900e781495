"""Create the virtual environment of the two commands from book/requirements.lock, or find it ready.

    python3.11 book/_ext/make_env.py .venv

A second call with the same lock file, project settings and place installs nothing. Runs on the bare
interpreter: standard library only.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LOCK = ROOT / "book" / "requirements.lock"
NOTE = "nclib-environment.json"
PINNED = "the pinned packages (1.8 GB on disk, about two minutes)"


def key(venv: pathlib.Path, lock: pathlib.Path = LOCK) -> str:
    """Digest of what decides the installation; the place counts, since installed paths are absolute."""
    project = (ROOT / "pyproject.toml").read_bytes() if lock == LOCK else b""
    parts = [lock.read_bytes(), project, str(venv).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def read_note(venv: pathlib.Path) -> dict[str, str]:
    try:
        return dict(json.loads((venv / NOTE).read_text("utf8")))
    except (OSError, ValueError):
        return {}


def make(venv: pathlib.Path, lock: pathlib.Path = LOCK, what: str = PINNED) -> None:
    """Bring ``venv`` to the state that the lock file names; does nothing when it is there already.

    The project itself is installed with its own lock file only; ``what`` says what is being installed.
    """
    venv = venv.resolve()
    note, want = read_note(venv), key(venv, lock)
    python = venv / "bin" / "python"
    if note.get("key") == want and python.exists():
        return
    begun = time.monotonic()
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        sys.exit(f"{venv} is not a virtual environment; move it away or name another: make VENV=folder")
    (venv / NOTE).unlink(missing_ok=True)
    if note.get("place") != str(venv) or not python.exists():
        print(f"Creating {venv} with Python {sys.version.split()[0]}", flush=True)
        if subprocess.call([sys.executable, "-m", "venv", "--clear", str(venv)]):
            sys.exit("No virtual environment could be made; on Debian and Ubuntu: apt install python3-venv")
    print(f"Installing {what} ...", flush=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    quiet = [] if sys.stdout.isatty() else ["--quiet"]
    steps = [
        [*pip, "install", *quiet, "--requirement", str(lock)],
        [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
        [*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT / "book")],
        [*pip, "check"],
    ]
    if lock != LOCK:
        del steps[1:3]
    for step in steps:
        if subprocess.call(step):
            sys.exit(f"Installing stopped at: {' '.join(step)}\nRun the same make command again to go on.")
    (venv / NOTE).write_text(json.dumps({"key": want, "place": str(venv)}), "utf8")
    print(f"Environment ready in {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".venv"))

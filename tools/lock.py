"""Write the digests of all files of every pinned version into the lock files.

    pip install uv packaging                    # into any environment
    python tools/lock.py

Versions stay as they are: edit a line, leave out its digests, and call this. uv asks the index of packages
that it is set to for the files of each version, for every platform and Python, wheels and sources. Only the
builds of torch for CPUs stand in another index: book/cpu.lock is written by hand.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = [ROOT / "book" / name for name in ("requirements.lock", "cuda.lock", "grids/requirements.lock")]
FILES = [
    "uv",
    "pip",
    "compile",
    "-",
    "--no-deps",
    "--generate-hashes",
    "--no-annotate",
    "--no-header",
    "--quiet",
]


def digests(pins: list[str]) -> dict[str, list[str]]:
    """Return the digests that the index lists for the files of each pin, by the name of its package."""
    asked = subprocess.run(FILES, input="\n".join(pins), text=True, check=True, capture_output=True).stdout
    found: dict[str, list[str]] = {}
    for part in asked.replace("\\\n", " ").splitlines():
        name, *hashes = part.split()
        found[canonicalize_name(name.split("==")[0])] = hashes
    return found


def main() -> None:
    """Write all lock files."""
    for path in LOCKS:
        lines = path.read_text("utf8").splitlines()
        head = [line for line in lines if line.startswith("#")]
        pins = [line.split()[0] for line in lines if "==" in line and not line.startswith("#")]
        found = digests(pins)
        text = [*head, ""]
        for pin in pins:
            text.append(" \\\n    ".join([pin, *found[canonicalize_name(pin.split("==")[0])]]))
        path.write_text("\n".join(text) + "\n", "utf8")


if __name__ == "__main__":
    main()

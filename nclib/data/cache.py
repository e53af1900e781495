"""Cache folders of generated files: written once, checked at every use, safe with several processes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock

from nclib.common.files import cache_folder, digest, write_atomically

MANIFEST = "manifest.json"


def from_cache(kind: str, key: str, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """Return the folder of generated files named by ``key``, building it when it is missing or damaged.

    The folder is built under another name and appears whole or not at all; a second process waits for the
    first and uses its files. A manifest with the SHA-256 of every file is compared at every call.

    Parameters
    ----------
    kind : str
        Name of the dataset, a sub-folder of :func:`nclib.common.files.cache_folder`.
    key : str
        Digest of everything that the files depend on.
    build : callable
        Writes the files into an empty folder and returns facts, which come back with the folder.

    Raises
    ------
    OSError
        When the cache folder cannot be written; the message says how to choose another.
    """
    final = cache_folder() / kind / key
    if (facts := read_facts(final)) is not None:
        return final, facts
    part, lock = final.with_name(f".{key}.part"), FileLock(final.with_name(f".{key}.lock"))
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        held = lock.acquire()
    except OSError as error:
        raise OSError(
            f"cannot write generated data to {final.parent} ({error.strerror}); set the environment variable "
            "NCLIB_CACHE to a folder that can be written"
        ) from error
    with held:
        if (facts := read_facts(final)) is None:  # no other process was first
            shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
            part.mkdir()
            try:
                facts = dict(build(part))
                facts["files"] = {path.name: digest(path) for path in sorted(part.iterdir())}
                write_atomically(part / MANIFEST, json.dumps(facts, indent=1, sort_keys=True))
                shutil.rmtree(final, ignore_errors=True)  # damaged
                os.rename(part, final)
            finally:
                shutil.rmtree(part, ignore_errors=True)
        with suppress(OSError):  # Windows removes it with the release
            Path(lock.lock_file).unlink()
    return final, facts


def read_facts(folder: Path) -> dict[str, Any] | None:
    """Return the facts of a cache folder, or None when a file is missing or changed."""
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
        there = {path.name for path in folder.iterdir()} - {MANIFEST}
        good = there == facts["files"].keys() and all(
            digest(folder / name) == wanted for name, wanted in facts["files"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return facts if good else None

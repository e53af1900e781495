"""Cache folders of generated files: written once, checked at every use, safe with several processes."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nclib.common.files import cache_folder, digest, write_atomically

MANIFEST = "manifest.json"
STALE = 24 * 3600.0  # seconds after which a half-built folder belongs to a dead process


def cached(kind: str, key: str, build: Callable[[Path], dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    """Return the folder of generated files named by ``key``, building it when it is missing or damaged.

    The folder is built under another name and appears whole or not at all; when two processes build the
    same one, the first to finish wins and both use it. A manifest with the SHA-256 of every file is
    compared at every call.

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
    home = cache_folder() / kind
    final = home / key
    facts = read_manifest(final)
    if facts is not None:
        return final, facts
    try:
        home.mkdir(parents=True, exist_ok=True)
        _tidy(home)
        part = home / f".{key}.{secrets.token_hex(6)}.part"
        part.mkdir()
    except OSError as error:
        raise OSError(
            f"cannot write generated data to {home} ({error.strerror}); set the environment variable "
            "NCLIB_CACHE to a folder that can be written"
        ) from error
    try:
        facts = dict(build(part))
        facts["files"] = {path.name: digest(path) for path in sorted(part.iterdir())}
        write_atomically(part / MANIFEST, json.dumps(facts, indent=1, sort_keys=True))
        _install(part, final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return final, facts


def read_manifest(folder: Path) -> dict[str, Any] | None:
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


def _install(part: Path, final: Path) -> None:
    while True:
        try:
            os.rename(part, final)  # fails when final is there and not empty
            return
        except OSError:
            if read_manifest(final) is not None:
                return  # another process was first; its files are as good
            old = final.with_name(f".{final.name}.{secrets.token_hex(6)}.part")
            if final.exists():
                os.rename(final, old)  # damaged: out of the way
                shutil.rmtree(old, ignore_errors=True)
            elif not part.exists():
                raise


def _tidy(home: Path) -> None:
    for path in home.glob(".*.part"):
        try:
            if time.time() - path.stat().st_mtime > STALE:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue  # another process has removed it already
